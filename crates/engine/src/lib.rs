//! The engine: morsel-driven pipelines of vectorised operators over tables and streams. Knows no SQL.

pub mod aggregate;
pub mod common;
pub mod counters;
pub mod determined;
pub mod dictionary;
pub mod evaluate;
pub mod expr;
pub mod grouping;
pub mod hash;
pub mod join;
pub mod later;
pub mod limit;
pub mod mask;
pub mod observed;
pub mod operators;
pub mod pipeline;
pub mod plan;
mod repeated;
mod room;
pub mod rows;
pub mod run;
#[cfg(test)]
mod run_tests;
pub mod scan;
pub mod schedule;
pub mod simd;
pub mod sort;
pub mod stream;
pub mod text;
pub mod touch;
pub mod types;
pub mod vector;
pub mod window;
