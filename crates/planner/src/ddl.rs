//! Statements that define things.
