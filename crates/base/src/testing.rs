//! Tests that need what not every machine has.

use std::fmt::Display;

/// To be called by a test that cannot run here, and returns then. Where `CI` is `true` it panics: a test that CI passes by would look
/// like one that passes.
#[track_caller]
pub fn cannot_test(missing: &dyn Display) {
    assert!(std::env::var_os("CI").is_none_or(|ci| ci != "true"), "CI must have what this test needs: {missing}");
    println!("skipped: {missing}");
}
