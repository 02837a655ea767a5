//! Number patterns: `9,999.00`, `FM0000`, `S9D99`, `RN`, `9.99EEEE`.

use crate::catalog::functions::{invalid, sql_error};
use crate::catalog::value::rescale;
use datafusion::common::Result;
use tidepool_base::SqlState;

/// A decimal's digits as text.
pub fn decimal_text(value: i128, scale: i8) -> String {
    let digits = value.unsigned_abs().to_string();
    let sign = if value < 0 { "-" } else { "" };
    match usize::try_from(scale).unwrap_or(0) {
        0 => format!("{sign}{digits}"),
        scale => {
            let padded = format!("{digits:0>width$}", width = scale + 1);
            let (whole, fraction) = padded.split_at(padded.len() - scale);
            format!("{sign}{whole}.{fraction}")
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Sign {
    /// A blank or minus before the number.
    Default,
    /// `S` at the start or at the end.
    Leading,
    Trailing,
    /// `MI`, `PL`, `SG` stand where they are written.
    Written,
    /// `<1>`
    Angle,
}

struct Pattern {
    tokens: Vec<Token>,
    fill: bool,
    sign: Sign,
    /// Digit places before and after the point.
    whole: usize,
    fraction: usize,
    /// Digits that `V` moves before the point.
    shift: usize,
    exponent: bool,
    roman: Option<bool>,
}

#[derive(Clone, PartialEq, Eq)]
enum Token {
    Nine,
    Zero,
    Point,
    Group,
    Minus,
    Plus,
    AnySign,
    Currency,
    Ordinal(bool),
    Text(String),
}

fn parse(format: &str) -> Pattern {
    let mut pattern = Pattern {
        tokens: Vec::new(),
        fill: true,
        sign: Sign::Default,
        whole: 0,
        fraction: 0,
        shift: 0,
        exponent: false,
        roman: None,
    };
    let mut rest = format;
    let mut after_point = false;
    let mut after_v = false;
    let keyword = |rest: &str, word: &str| rest.get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word));
    while let Some(first) = rest.chars().next() {
        let mut length = first.len_utf8();
        match first {
            '9' | '0' => {
                pattern.tokens.push(if first == '9' { Token::Nine } else { Token::Zero });
                if after_v {
                    pattern.shift += 1;
                    pattern.whole += 1;
                } else if after_point {
                    pattern.fraction += 1;
                } else {
                    pattern.whole += 1;
                }
            }
            '.' | 'D' | 'd' if !after_point => {
                after_point = true;
                pattern.tokens.push(Token::Point);
            }
            ',' | 'G' | 'g' => pattern.tokens.push(Token::Group),
            'V' | 'v' => after_v = true,
            '"' => {
                let end = rest[1..].find('"').map_or(rest.len(), |end| end + 2);
                pattern.tokens.push(Token::Text(rest[1..end].trim_end_matches('"').to_owned()));
                length = end;
            }
            _ if keyword(rest, "FM") => {
                pattern.fill = false;
                length = 2;
            }
            _ if keyword(rest, "PR") => {
                pattern.sign = Sign::Angle;
                length = 2;
            }
            _ if keyword(rest, "MI") || keyword(rest, "PL") || keyword(rest, "SG") => {
                pattern.sign = Sign::Written;
                pattern.tokens.push(match &rest[..2].to_ascii_uppercase()[..] {
                    "MI" => Token::Minus,
                    "PL" => Token::Plus,
                    _ => Token::AnySign,
                });
                length = 2;
            }
            _ if keyword(rest, "RN") => {
                pattern.roman = Some(rest.starts_with('R'));
                length = 2;
            }
            _ if keyword(rest, "TH") => {
                pattern.tokens.push(Token::Ordinal(rest.starts_with('T')));
                length = 2;
            }
            _ if keyword(rest, "EEEE") => {
                pattern.exponent = true;
                length = 4;
            }
            'S' | 's' => {
                pattern.sign = if pattern.whole + pattern.fraction == 0 { Sign::Leading } else { Sign::Trailing };
            }
            'L' | 'l' => pattern.tokens.push(Token::Currency),
            other => pattern.tokens.push(Token::Text(other.to_string())),
        }
        rest = &rest[length..];
    }
    pattern
}

/// NaN and infinities fill the pattern with `#`-like marks, as PostgreSQL does.
pub fn special(format: &str, value: f64) -> String {
    let word = if value.is_nan() {
        "NaN"
    } else if value > 0.0 {
        "Infinity"
    } else {
        "-Infinity"
    };
    let pattern = parse(format);
    if pattern.fill { format!("{word:>width$}", width = pattern.whole + 1) } else { word.to_owned() }
}

/// A float goes through its shortest decimal form.
pub fn write_float(format: &str, value: f64) -> String {
    let pattern = parse(format);
    if pattern.exponent {
        return exponent(&pattern, value);
    }
    let text = format!("{:.*}", (pattern.fraction + pattern.shift).min(15), value);
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    let scale = text.split_once('.').map_or(0, |(_, fraction)| fraction.len());
    match digits.parse::<i128>() {
        Ok(number) => write(format, if value < 0.0 { -number } else { number }, scale as i8),
        // More digits than any pattern has places for.
        Err(_) => "#".repeat(pattern.whole + 1),
    }
}

fn exponent(pattern: &Pattern, value: f64) -> String {
    let text = format!("{:.*e}", pattern.fraction, value.abs());
    let (mantissa, power) = text.split_once('e').unwrap_or((&text, "0"));
    let power: i32 = power.parse().unwrap_or(0);
    let sign = if value < 0.0 {
        "-"
    } else if pattern.fill {
        " "
    } else {
        ""
    };
    format!("{sign}{mantissa}e{}{:02}", if power < 0 { '-' } else { '+' }, power.abs())
}

pub fn write(format: &str, value: i128, scale: i8) -> String {
    let pattern = parse(format);
    if let Some(upper) = pattern.roman {
        return roman(&pattern, rescale(value, scale, 0).unwrap_or(0), upper);
    }
    if pattern.exponent {
        return exponent(&pattern, decimal_text(value, scale).parse().unwrap_or(0.0));
    }
    let places = i8::try_from(pattern.fraction).unwrap_or(0);
    let shifted = 10i128.checked_pow(pattern.shift as u32).and_then(|factor| value.checked_mul(factor));
    let Some(rounded) = shifted.and_then(|value| rescale(value, scale, places).ok()) else {
        return "#".repeat(pattern.whole + 1);
    };
    let negative = rounded < 0;
    let text = decimal_text(rounded.abs(), places);
    let (whole, fraction) = text.split_once('.').unwrap_or((&text, ""));
    let whole = if whole == "0" && pattern.fraction > 0 { "" } else { whole };
    let overflow = whole.len() > pattern.whole;
    place(&pattern, negative, whole, fraction, overflow)
}

/// Puts digits into their places.
fn place(pattern: &Pattern, negative: bool, whole: &str, fraction: &str, overflow: bool) -> String {
    let first_zero =
        pattern.tokens.iter().filter(|t| matches!(t, Token::Nine | Token::Zero)).position(|t| *t == Token::Zero);
    // From the first `0` on, places are never blank.
    let zero_from = first_zero.unwrap_or(usize::MAX);
    // `9` places at the end of the fraction, which FM leaves out when they are 0.
    let kept_fraction = if pattern.fill {
        fraction.len()
    } else {
        let last_zero = pattern.tokens.iter().filter(|t| matches!(t, Token::Nine | Token::Zero)).skip(pattern.whole);
        let required =
            last_zero.enumerate().filter(|(_, t)| **t == Token::Zero).map(|(i, _)| i + 1).last().unwrap_or(0);
        fraction.trim_end_matches('0').len().max(required)
    };
    let lead = pattern.whole.saturating_sub(whole.len());
    let mut out = String::new();
    let mut sign_at = None;
    let mut index = 0;
    let mut after_point = false;
    let mut shown = false;
    for token in &pattern.tokens {
        match token {
            Token::Nine | Token::Zero if !after_point => {
                let digit = if overflow {
                    Some('#')
                } else if index < lead {
                    (index >= zero_from).then_some('0')
                } else {
                    whole.as_bytes().get(index - lead).map(|digit| char::from(*digit))
                };
                // A lone 9 before the point shows 0 where there is nothing else to show.
                let digit = digit.or_else(|| (index + 1 == pattern.whole && pattern.fraction == 0).then_some('0'));
                match digit {
                    Some(digit) => {
                        sign_at.get_or_insert(out.len());
                        shown = true;
                        out.push(digit);
                    }
                    None if pattern.fill => out.push(' '),
                    None => {}
                }
                index += 1;
            }
            Token::Nine | Token::Zero => {
                let position = index - pattern.whole;
                if overflow {
                    out.push('#');
                } else if position < kept_fraction {
                    out.push(fraction.as_bytes().get(position).map_or('0', |digit| char::from(*digit)));
                }
                index += 1;
            }
            Token::Point => {
                sign_at.get_or_insert(out.len());
                after_point = true;
                shown = true;
                out.push('.');
            }
            Token::Group if shown => out.push(','),
            Token::Group if pattern.fill => out.push(' '),
            Token::Group => {}
            Token::Minus if negative => out.push('-'),
            Token::Plus if !negative => out.push('+'),
            Token::Minus | Token::Plus if pattern.fill => out.push(' '),
            Token::Minus | Token::Plus => {}
            Token::AnySign => out.push(if negative { '-' } else { '+' }),
            Token::Currency if pattern.fill => out.push(' '),
            Token::Currency => {}
            Token::Ordinal(upper) => {
                if !negative && fraction.is_empty() {
                    let number: i128 = whole.parse().unwrap_or(0);
                    let suffix = match (number % 10, number % 100) {
                        (_, 11..=13) => "th",
                        (1, _) => "st",
                        (2, _) => "nd",
                        (3, _) => "rd",
                        _ => "th",
                    };
                    out.push_str(&if *upper { suffix.to_uppercase() } else { suffix.to_owned() });
                }
            }
            Token::Text(text) => out.push_str(text),
        }
    }
    let at = sign_at.unwrap_or(0);
    match pattern.sign {
        Sign::Written => {}
        Sign::Trailing => out.push(if negative { '-' } else { '+' }),
        Sign::Leading => out.insert(at, if negative { '-' } else { '+' }),
        Sign::Angle if negative => {
            out.insert(at, '<');
            out.push('>');
        }
        Sign::Angle if pattern.fill => {
            out.insert(at, ' ');
            out.push(' ');
        }
        Sign::Angle => {}
        Sign::Default if negative => out.insert(at, '-'),
        Sign::Default if pattern.fill => out.insert(at, ' '),
        Sign::Default => {}
    }
    out
}

fn roman(pattern: &Pattern, value: i128, upper: bool) -> String {
    const NUMERALS: [(i128, &str); 13] = [
        (1000, "M"),
        (900, "CM"),
        (500, "D"),
        (400, "CD"),
        (100, "C"),
        (90, "XC"),
        (50, "L"),
        (40, "XL"),
        (10, "X"),
        (9, "IX"),
        (5, "V"),
        (4, "IV"),
        (1, "I"),
    ];
    let mut text = String::new();
    if (1..4000).contains(&value) {
        let mut rest = value;
        for (worth, numeral) in NUMERALS {
            while rest >= worth {
                text.push_str(numeral);
                rest -= worth;
            }
        }
    } else {
        text = "#".repeat(15);
    }
    let text = if upper { text } else { text.to_lowercase() };
    if pattern.fill { format!("{text:>15}") } else { text }
}

/// The number that `format` finds in `text`, unscaled, and its scale.
pub fn read(text: &str, format: &str) -> Result<(i128, i8)> {
    let pattern = parse(format);
    let mut digits = String::new();
    let mut fraction = None;
    let mut negative = false;
    for character in text.chars() {
        match character {
            '0'..='9' => {
                digits.push(character);
                if let Some(count) = &mut fraction {
                    *count += 1;
                }
            }
            '.' if fraction.is_none() && pattern.tokens.contains(&Token::Point) => fraction = Some(0i8),
            '-' | '<' => negative = true,
            _ => {}
        }
    }
    if digits.is_empty() {
        return Err(sql_error(
            SqlState::INVALID_TEXT_REPRESENTATION,
            format!("invalid input syntax for type numeric: \"{text}\""),
        ));
    }
    let value: i128 = digits.parse().map_err(|_| invalid("numeric field overflow"))?;
    let scale = fraction.unwrap_or(0);
    let keep = i8::try_from(pattern.fraction).unwrap_or(scale).min(scale);
    let value = rescale(if negative { -value } else { value }, scale, keep)?;
    Ok((value, keep))
}
