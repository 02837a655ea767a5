//! Regular expressions as PostgreSQL reads them, for a library that reads some of their parts otherwise.
//!
//! A dot stands for a line's end, too; classes by name are those of all letters; `\m`, `\M` and `\y` are ends of words; and what stands
//! for what was found is `\1` and `\&`, never `$1`.

use super::rewrite::{call, function_name, string_literal, take, text};
use crate::walk::names_column;
use datafusion::sql::sqlparser::ast::{
    BinaryOperator, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments,
};
use std::borrow::Cow;

/// Rewrites the patterns that stand as literals in an expression of the text, at its top.
pub fn translate(expr: &mut Expr) {
    match expr {
        Expr::BinaryOp { op, right, .. } if is_match(op) => pattern(right),
        Expr::Function(Function { name, args: FunctionArguments::List(list), .. }) => {
            let Some(name) = function_name(name) else { return };
            let mut args = list.args.iter_mut().filter_map(|arg| match arg {
                FunctionArg::Unnamed(FunctionArgExpr::Expr(arg)) => Some(arg),
                _ => None,
            });
            of_function(&name, &mut args);
        }
        Expr::Substring { substring_from: Some(from), substring_for: None, .. } => pattern(from),
        _ => {}
    }
}

/// The same of a call's arguments.
pub fn translate_call(name: &str, args: &mut [Expr]) {
    of_function(name, &mut args.iter_mut());
}

fn of_function(name: &str, args: &mut dyn Iterator<Item = &mut Expr>) {
    let takes_pattern = matches!(
        name,
        "regexp_count"
            | "regexp_instr"
            | "regexp_like"
            | "regexp_match"
            | "regexp_matches"
            | "regexp_replace"
            | "regexp_split_to_array"
            | "regexp_split_to_table"
            | "regexp_substr"
    );
    if !takes_pattern {
        return;
    }
    if let Some(of) = args.nth(1) {
        pattern(of);
    }
    if name == "regexp_replace"
        && let Some(replacement) = args.next()
        && let Some(written) = string_literal(replacement)
        && let Cow::Owned(translated) = translated_replacement(written)
    {
        *replacement = text(translated);
    }
}

fn is_match(op: &BinaryOperator) -> bool {
    match op {
        BinaryOperator::PGRegexMatch
        | BinaryOperator::PGRegexIMatch
        | BinaryOperator::PGRegexNotMatch
        | BinaryOperator::PGRegexNotIMatch => true,
        BinaryOperator::PGCustomBinaryOperator(parts) => {
            parts.last().is_some_and(|symbol| matches!(symbol.as_str(), "~" | "~*" | "!~" | "!~*"))
        }
        _ => false,
    }
}

fn pattern(expr: &mut Expr) {
    if let Some(written) = string_literal(expr)
        && let Cow::Owned(translated) = translated(written)
    {
        *expr = text(translated);
    } else if string_literal(expr).is_none() && names_column(expr) {
        *expr = call("pg_pattern", vec![take(expr)]);
    }
}

/// A character that is none of a pattern's own, before which a backslash says so.
fn is_special(character: char) -> bool {
    matches!(
        character,
        '\\' | '.' | '+' | '*' | '?' | '(' | ')' | '|' | '[' | ']' | '{' | '}' | '^' | '$' | '#' | '&' | '-' | '~'
    )
}

/// The pattern in the library's terms.
pub fn translated(pattern: &str) -> Cow<'_, str> {
    if let Some(plain) = pattern.strip_prefix("***=") {
        let mut out = String::with_capacity(plain.len());
        for character in plain.chars() {
            if is_special(character) {
                out.push('\\');
            }
            out.push(character);
        }
        return Cow::Owned(out);
    }
    let written = pattern.strip_prefix("***:").unwrap_or(pattern);
    let mut out = String::with_capacity(written.len() + 4);
    let mut has_dot = false;
    let mut rest = written;
    while let Some(character) = rest.chars().next() {
        rest = &rest[character.len_utf8()..];
        match character {
            '\\' => {
                let Some(escaped) = rest.chars().next() else {
                    out.push('\\');
                    break;
                };
                rest = &rest[escaped.len_utf8()..];
                match escaped {
                    'm' => out.push_str("\\b{start}"),
                    'M' => out.push_str("\\b{end}"),
                    'y' => out.push_str("\\b"),
                    'Y' => out.push_str("\\B"),
                    'Z' => out.push_str("\\z"),
                    escaped => {
                        out.push('\\');
                        out.push(escaped);
                    }
                }
            }
            '[' => rest = class(rest, &mut out),
            '.' => {
                has_dot = true;
                out.push('.');
            }
            character => out.push(character),
        }
    }
    // All texts match this one, as rules know.
    let is_any = written == ".*";
    if has_dot && !is_any && !(written.starts_with("(?") && sets_lines(written)) {
        out.insert_str(0, "(?s)");
    }
    if out == pattern { Cow::Borrowed(pattern) } else { Cow::Owned(out) }
}

/// Whether options at the beginning say that a line's end is something special.
fn sets_lines(pattern: &str) -> bool {
    let options = pattern.trim_start_matches("(?").split(')').next().unwrap_or_default();
    options.bytes().all(|option| option.is_ascii_lowercase()) && options.contains(['m', 'n', 'p', 'w'])
}

/// Reads what comes behind `[`, and gives what comes behind its end.
fn class<'p>(mut rest: &'p str, out: &mut String) -> &'p str {
    for (word_end, written) in [("[:<:]]", "\\b{start}"), ("[:>:]]", "\\b{end}")] {
        if let Some(behind) = rest.strip_prefix(word_end) {
            out.push_str(written);
            return behind;
        }
    }
    out.push('[');
    if let Some(behind) = rest.strip_prefix('^') {
        out.push('^');
        rest = behind;
    }
    let mut is_first = true;
    while let Some(character) = rest.chars().next() {
        let behind = &rest[character.len_utf8()..];
        match character {
            ']' if !is_first => {
                out.push(']');
                return behind;
            }
            // The first one is a member.
            ']' => out.push_str("\\]"),
            '[' if behind.starts_with(':') => {
                let Some((name, after)) = behind[1..].split_once(":]") else {
                    out.push_str("\\[");
                    rest = behind;
                    is_first = false;
                    continue;
                };
                match name {
                    "alpha" => out.push_str("\\p{Alphabetic}"),
                    "upper" => out.push_str("\\p{Uppercase}"),
                    "lower" => out.push_str("\\p{Lowercase}"),
                    "alnum" => out.push_str("\\p{Alphabetic}0-9"),
                    "space" => out.push_str("\\s"),
                    name => {
                        out.push_str("[:");
                        out.push_str(name);
                        out.push_str(":]");
                    }
                }
                rest = after;
                is_first = false;
                continue;
            }
            '[' => out.push_str("\\["),
            '&' | '~' => {
                out.push('\\');
                out.push(character);
            }
            '\\' => {
                out.push('\\');
                if let Some(escaped) = behind.chars().next() {
                    out.push(escaped);
                    rest = &behind[escaped.len_utf8()..];
                    is_first = false;
                    continue;
                }
            }
            character => out.push(character),
        }
        rest = behind;
        is_first = false;
    }
    rest
}

/// What a match is replaced by, in the library's terms.
fn translated_replacement(written: &str) -> Cow<'_, str> {
    if !written.contains(['\\', '$']) {
        return Cow::Borrowed(written);
    }
    let mut out = String::with_capacity(written.len() + 8);
    let mut characters = written.chars().peekable();
    while let Some(character) = characters.next() {
        match (character, characters.peek()) {
            ('$', _) => out.push_str("$$"),
            ('\\', Some(&digit @ '1'..='9')) => {
                characters.next();
                out.push_str("${");
                out.push(digit);
                out.push('}');
            }
            ('\\', Some('&')) => {
                characters.next();
                out.push_str("${0}");
            }
            ('\\', Some('\\')) => {
                characters.next();
                out.push('\\');
                // What follows is not to be taken for the number of a group: none has this name.
                if characters.peek().is_some_and(char::is_ascii_digit) {
                    out.push_str("${none}");
                }
            }
            (character, _) => out.push(character),
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_read_as_postgresql_reads_them() {
        for (written, expected) in [
            ("abc", "abc"),
            (".*", ".*"),
            ("a.b", "(?s)a.b"),
            ("a\\.b", "a\\.b"),
            ("(?i)a.b", "(?s)(?i)a.b"),
            ("(?n)a.b", "(?n)a.b"),
            ("(a|b)x.", "(?s)(a|b)x."),
            ("\\mtwo\\M", "\\b{start}two\\b{end}"),
            ("[[:<:]]two[[:>:]]", "\\b{start}two\\b{end}"),
            ("[[:upper:]_]", "[\\p{Uppercase}_]"),
            ("[^[:digit:]]", "[^[:digit:]]"),
            ("[].]", "[\\].]"),
            ("[a[b]", "[a\\[b]"),
            ("[a&&b]", "[a\\&\\&b]"),
            ("[\\]x]", "[\\]x]"),
            ("***=a.b", "a\\.b"),
            ("***:a", "a"),
            ("a\\", "a\\"),
            ("[a", "[a"),
        ] {
            assert_eq!(translated(written), expected, "{written}");
        }
    }

    #[test]
    fn replacements_name_groups_by_backslashes() {
        for (written, expected) in [
            ("x", "x"),
            ("<\\&>", "<${0}>"),
            ("$0", "$$0"),
            ("\\1\\12", "${1}${1}2"),
            ("\\\\1", "\\${none}1"),
            ("\\q", "\\q"),
        ] {
            assert_eq!(translated_replacement(written), expected, "{written}");
        }
    }
}
