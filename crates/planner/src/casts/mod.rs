//! Literals and casts with PostgreSQL's meaning, as two rules around DataFusion's type coercion.
//!
//! Before it, [`Literals`] gives untyped string literals the type of what they are compared with and reads the literals of
//! casts (`'2020-02-30'::date`) with PostgreSQL's own reader, so that they become constants, or its errors. After it,
//! [`Casts`] replaces what Arrow's cast kernels do differently: numbers to integers round, integer
//! arithmetic does not wrap around, texts are read and written as
//! PostgreSQL does, timestamps change zones by the session's, and a division by a floating-point zero is an error.

mod after_coercion;
mod before_coercion;
mod dates;
mod functions;
mod plans;

pub use after_coercion::Casts;
pub use before_coercion::{Literals, decimal_literal, literal_like, untyped};
pub use functions::{KEY, key, read_array_items, reads, watched};
pub use plans::{INSTANT, is_comparison, map_expressions, null, rewrite_plan};
