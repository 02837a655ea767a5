//! What a panic comes to: the error of the statement that met it, and nobody else's.

use crate::{Error, Result};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The error that a panic is to those who wait for what panicked.
pub fn panicked(panic: &(dyn Any + Send)) -> Error {
    let message = match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(message), _) => message,
        (_, Some(message)) => message.as_str(),
        _ => "of unknown cause",
    };
    Error::internal(format!("internal error: {message}"))
}

/// What `work` comes to, a panic included. What it changed must be consistent, or nobody's, when it panics.
pub fn caught<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(panicked(panic.as_ref())))
}
