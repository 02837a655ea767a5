//! Names of calls.
//!
//! DataFusion names a column by all of the expression that it is, asks each part of an expression for its name whenever it asks for its type, and
//! writes a call's name out at every level anew. So planning took time with the third power of how deep calls are nested. Here the name of a
//! call is no longer than a line: of a longer one, the beginning and a digest of all.

use datafusion::common::Result;
use datafusion::logical_expr::Expr;
use std::fmt::Write;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Bytes up to which a name is written out.
const WRITTEN_OUT_MAX: usize = 160;

/// Bytes of a longer one that are written out.
const BEGINNING: usize = 40;

/// What a column that is a call is called.
pub fn name_of_call(function: &str, args: &[Expr]) -> Result<String> {
    let mut name = format!("{function}(");
    for (place, arg) in args.iter().enumerate() {
        let comma = if place == 0 { "" } else { "," };
        // Writing to a text does not fail.
        let _ = write!(name, "{comma}{}", arg.schema_name());
    }
    name.push(')');
    Ok(shortened(name))
}

fn shortened(name: String) -> String {
    if name.len() <= WRITTEN_OUT_MAX {
        return name;
    }
    // Twice, with something before: one digest of 64 bits would be found twice too easily.
    let digest = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        (salt, &name).hash(&mut hasher);
        hasher.finish()
    };
    let beginning: String = name.chars().take(BEGINNING).collect();
    format!("{beginning}… {:016x}{:016x})", digest(0), digest(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::logical_expr::{col, lit};

    #[test]
    fn long_names_are_short_and_differ() {
        assert_eq!(name_of_call("f", &[col("a"), lit(1)]).unwrap(), "f(a,Int32(1))");
        let long = |last: &str| name_of_call("f", &[lit("é".repeat(200)), lit(last)]).unwrap();
        assert_eq!(long("x"), long("x"));
        assert_ne!(long("x"), long("y"));
        assert!(long("x").len() < WRITTEN_OUT_MAX && long("x").starts_with("f(Utf8(\"éé"), "{}", long("x"));
    }
}
