//! What a panic comes to: the error of the statement that met it, and nobody else's.

use crate::{Error, Result, SqlState};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The error that a panic is to those who wait for what panicked.
pub fn panicked(panic: &(dyn Any + Send)) -> Error {
    let message = match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(message), _) => message,
        (_, Some(message)) => message.as_str(),
        _ => "of unknown cause",
    };
    if message.ends_with(COLUMN_OVERFLOW) {
        // Arrow has no other way to say so.
        return Error::new(SqlState::OUT_OF_MEMORY, "out of memory")
            .with_detail("The values of some rows that are worked on together are longer than one column can hold.");
    }
    Error::internal(format!("internal error: {message}"))
}

/// How Arrow's panics end where a column's values, which lie one after the other, take more than 2 GB.
const COLUMN_OVERFLOW: &str = "offset overflow";

/// What `work` comes to, a panic included. What it changed must be consistent, or nobody's, when it panics.
pub fn caught<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(panicked(panic.as_ref())))
}
