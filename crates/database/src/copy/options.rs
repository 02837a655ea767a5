//! What is written after `WITH`.

use tidepool_base::{Error, Result, SqlState};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyFormat {
    Text,
    Csv,
    Binary,
    Parquet,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyHeader {
    None,
    /// Written; on reading, skipped.
    Yes,
    /// On reading, its names must be the columns'.
    Match,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyOnError {
    Stop,
    /// Rows with a value that its column cannot hold are left out and counted.
    Ignore,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParquetCompression {
    None,
    Snappy,
    Zstd,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyOptions {
    pub format: CopyFormat,
    pub delimiter: u8,
    pub null: String,
    pub header: CopyHeader,
    pub quote: u8,
    pub escape: u8,
    /// `Some(empty)` is `*`: all columns.
    pub force_quote: Option<Vec<String>>,
    pub force_null: Option<Vec<String>>,
    pub force_not_null: Option<Vec<String>>,
    pub on_error: CopyOnError,
    pub compression: ParquetCompression,
}

impl CopyOptions {
    /// PostgreSQL's defaults for a format.
    pub fn new(format: CopyFormat) -> CopyOptions {
        let csv = format == CopyFormat::Csv;
        CopyOptions {
            format,
            delimiter: if csv { b',' } else { b'\t' },
            null: if csv { String::new() } else { "\\N".to_owned() },
            header: CopyHeader::None,
            quote: b'"',
            escape: b'"',
            force_quote: None,
            force_null: None,
            force_not_null: None,
            on_error: CopyOnError::Stop,
            compression: ParquetCompression::Snappy,
        }
    }

    /// Applies `(name, value)` option pairs as written after `WITH`; 42601 / 22023 on nonsense. Lists of columns are
    /// comma-separated, or `*`.
    pub fn from_pairs(pairs: &[(String, Option<String>)]) -> Result<CopyOptions> {
        let mut format = CopyFormat::Text;
        let mut seen: Vec<String> = Vec::new();
        for (name, value) in pairs {
            let name = name.to_ascii_lowercase();
            if seen.contains(&name) {
                return Err(Error::new(SqlState::SYNTAX_ERROR, "conflicting or redundant options")
                    .with_detail(format!("The option \"{name}\" is given twice.")));
            }
            if name == "format" {
                format = match required(&name, value)?.to_ascii_lowercase().as_str() {
                    "text" => CopyFormat::Text,
                    "csv" => CopyFormat::Csv,
                    "parquet" => CopyFormat::Parquet,
                    "binary" => CopyFormat::Binary,
                    other => {
                        return Err(Error::new(
                            SqlState::INVALID_PARAMETER_VALUE,
                            format!("COPY format \"{other}\" not recognized"),
                        ));
                    }
                };
            }
            seen.push(name);
        }
        let mut options = CopyOptions::new(format);
        let mut escape = None;
        for (name, value) in pairs {
            let name = name.to_ascii_lowercase();
            match name.as_str() {
                "format" => {}
                "freeze" => {
                    boolean(&name, value)?;
                }
                "delimiter" => options.delimiter = one_byte("delimiter", required(&name, value)?)?,
                "null" => options.null = required(&name, value)?.to_owned(),
                "header" => {
                    options.header = match value.as_deref() {
                        Some(text) if text.eq_ignore_ascii_case("match") => CopyHeader::Match,
                        _ if boolean(&name, value)? => CopyHeader::Yes,
                        _ => CopyHeader::None,
                    };
                }
                "quote" => options.quote = one_byte("quote", required(&name, value)?)?,
                "escape" => escape = Some(one_byte("escape", required(&name, value)?)?),
                "force_quote" => options.force_quote = Some(columns(required(&name, value)?)),
                "force_null" => options.force_null = Some(columns(required(&name, value)?)),
                "force_not_null" => options.force_not_null = Some(columns(required(&name, value)?)),
                "encoding" => {
                    let encoding = required(&name, value)?;
                    if !matches!(encoding.to_ascii_lowercase().replace(['-', '_'], "").as_str(), "utf8" | "unicode") {
                        return Err(Error::unsupported(format!("encoding \"{encoding}\" is not supported"))
                            .with_hint("Convert the file to UTF8 first."));
                    }
                }
                "on_error" => {
                    options.on_error = match required(&name, value)?.to_ascii_lowercase().as_str() {
                        "stop" => CopyOnError::Stop,
                        "ignore" => CopyOnError::Ignore,
                        other => {
                            return Err(Error::new(
                                SqlState::INVALID_PARAMETER_VALUE,
                                format!("COPY ON_ERROR \"{other}\" not recognized"),
                            ));
                        }
                    };
                }
                "compression" if format == CopyFormat::Parquet => {
                    options.compression = match required(&name, value)?.to_ascii_lowercase().as_str() {
                        "none" | "uncompressed" => ParquetCompression::None,
                        "snappy" => ParquetCompression::Snappy,
                        "zstd" => ParquetCompression::Zstd,
                        other => {
                            return Err(Error::new(
                                SqlState::INVALID_PARAMETER_VALUE,
                                format!("Parquet compression \"{other}\" not recognized"),
                            )
                            .with_hint("Available values: none, snappy, zstd."));
                        }
                    };
                }
                _ => {
                    return Err(Error::new(SqlState::SYNTAX_ERROR, format!("option \"{name}\" not recognized")));
                }
            }
        }
        // Unless it is given, the escape is the quote.
        options.escape = escape.unwrap_or(options.quote);
        let given = |name: &str| seen.iter().any(|seen| seen == name);
        let csv = format == CopyFormat::Csv;
        for name in ["quote", "escape", "force_quote", "force_null", "force_not_null"] {
            if given(name) && !csv {
                return Err(Error::unsupported(format!("COPY {} requires CSV mode", name.to_ascii_uppercase())));
            }
        }
        let mode = match format {
            CopyFormat::Binary => "BINARY",
            CopyFormat::Parquet => "PARQUET",
            CopyFormat::Text | CopyFormat::Csv => "",
        };
        for name in ["delimiter", "null", "header", "on_error"] {
            if given(name) && !mode.is_empty() {
                let code = if name == "header" { SqlState::FEATURE_NOT_SUPPORTED } else { SqlState::SYNTAX_ERROR };
                let name = name.to_ascii_uppercase();
                return Err(Error::new(code, format!("cannot specify {name} in {mode} mode")));
            }
        }
        options.validate()?;
        Ok(options)
    }

    /// PostgreSQL's rules for which characters may stand together.
    pub fn validate(&self) -> Result<()> {
        let invalid = |message: &str| Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, message));
        let csv = self.format == CopyFormat::Csv;
        if matches!(self.format, CopyFormat::Parquet | CopyFormat::Binary) {
            return Ok(());
        }
        if !self.delimiter.is_ascii() || self.delimiter == 0 {
            return invalid("COPY delimiter must be a single one-byte character");
        }
        if matches!(self.delimiter, b'\n' | b'\r') {
            return invalid("COPY delimiter cannot be newline or carriage return");
        }
        if self.null.contains(['\n', '\r']) {
            return invalid("COPY null representation cannot use newline or carriage return");
        }
        if !csv && (b"\\.abcdefghijklmnopqrstuvwxyz0123456789").contains(&self.delimiter) {
            return invalid(&format!("COPY delimiter cannot be \"{}\"", self.delimiter as char));
        }
        if self.null.as_bytes().contains(&self.delimiter) {
            return invalid("COPY delimiter character must not appear in the NULL specification");
        }
        if csv {
            if matches!(self.quote, b'\n' | b'\r') || matches!(self.escape, b'\n' | b'\r') {
                return invalid("COPY quote and escape cannot be newline or carriage return");
            }
            if self.delimiter == self.quote {
                return invalid("COPY delimiter and quote must be different");
            }
            if self.null.as_bytes().contains(&self.quote) {
                return invalid("CSV quote character must not appear in the NULL specification");
            }
        }
        Ok(())
    }

    /// Which of `names` a list like `force_quote` means. 42703 for a column that is not among them.
    pub(crate) fn listed(list: &Option<Vec<String>>, names: &[&str]) -> Result<Vec<bool>> {
        let mut chosen = vec![false; names.len()];
        if let Some(list) = list {
            if list.is_empty() {
                chosen.fill(true);
            }
            for name in list {
                let at = names.iter().position(|candidate| candidate == name).ok_or_else(|| {
                    Error::new(SqlState::UNDEFINED_COLUMN, format!("column \"{name}\" is not among those of this COPY"))
                })?;
                chosen[at] = true;
            }
        }
        Ok(chosen)
    }
}

fn required<'a>(name: &str, value: &'a Option<String>) -> Result<&'a str> {
    value.as_deref().ok_or_else(|| Error::new(SqlState::SYNTAX_ERROR, format!("{name} requires a parameter")))
}

fn boolean(name: &str, value: &Option<String>) -> Result<bool> {
    match value.as_deref().map(str::to_ascii_lowercase).as_deref() {
        None | Some("true" | "on" | "1" | "yes") => Ok(true),
        Some("false" | "off" | "0" | "no") => Ok(false),
        Some(_) => Err(Error::new(SqlState::SYNTAX_ERROR, format!("{name} requires a Boolean value"))),
    }
}

fn one_byte(name: &str, text: &str) -> Result<u8> {
    match text.as_bytes() {
        [byte] if byte.is_ascii() && *byte != 0 => Ok(*byte),
        _ => Err(Error::unsupported(format!("COPY {name} must be a single one-byte character"))),
    }
}

fn columns(text: &str) -> Vec<String> {
    let text = text.trim();
    if text == "*" {
        return Vec::new();
    }
    text.trim_start_matches('(').trim_end_matches(')').split(',').map(|name| name.trim().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(list: &[(&str, Option<&str>)]) -> Result<CopyOptions> {
        let owned: Vec<_> = list.iter().map(|(name, value)| (name.to_string(), value.map(str::to_owned))).collect();
        CopyOptions::from_pairs(&owned)
    }

    #[test]
    fn options_are_applied_over_the_formats_defaults() {
        let options = pairs(&[("FORMAT", Some("csv")), ("header", None), ("quote", Some("'"))]).unwrap();
        assert_eq!((options.format, options.header), (CopyFormat::Csv, CopyHeader::Yes));
        assert_eq!((options.quote, options.escape, options.delimiter), (b'\'', b'\'', b','));
        let options = pairs(&[("header", Some("match")), ("null", Some("NIL"))]).unwrap();
        assert_eq!((options.header, options.null.as_str()), (CopyHeader::Match, "NIL"));
        assert_eq!(
            pairs(&[("format", Some("csv")), ("force_null", Some("a, b"))]).unwrap().force_null.unwrap(),
            ["a", "b"]
        );
    }

    #[test]
    fn nonsense_is_refused_as_postgresql_does() {
        for (list, code) in [
            (vec![("format", Some("xml"))], "22023"),
            (vec![("delimiter", Some("ab"))], "0A000"),
            (vec![("delimiter", Some("a"))], "22023"),
            (vec![("delimiter", Some("\n"))], "22023"),
            (vec![("quote", Some("'"))], "0A000"),
            (vec![("format", Some("csv")), ("quote", Some(","))], "22023"),
            (vec![("format", Some("csv")), ("null", Some("\""))], "22023"),
            (vec![("null", Some("a\tb"))], "22023"),
            (vec![("header", Some("perhaps"))], "42601"),
            (vec![("colour", Some("red"))], "42601"),
            (vec![("null", None)], "42601"),
            (vec![("null", Some("a")), ("NULL", Some("b"))], "42601"),
            (vec![("encoding", Some("latin1"))], "0A000"),
            (vec![("format", Some("parquet")), ("compression", Some("lz4"))], "22023"),
            (vec![("format", Some("binary")), ("delimiter", Some(","))], "42601"),
            (vec![("format", Some("binary")), ("null", Some(""))], "42601"),
            (vec![("format", Some("binary")), ("header", None)], "0A000"),
            (vec![("format", Some("binary")), ("quote", Some("'"))], "0A000"),
        ] {
            assert_eq!(pairs(&list).unwrap_err().code().code(), code, "{list:?}");
        }
    }
}
