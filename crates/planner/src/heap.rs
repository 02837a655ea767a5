//! The query heap around a plan's execution.
