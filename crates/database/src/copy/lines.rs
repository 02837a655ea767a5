//! Where rows end, in bytes that come in pieces.
//!
//! A row ends at a line end that is not part of a value: in text one without a backslash before it, in CSV one outside
//! quotes. The splitter looks at each byte once: it remembers where it stopped and in which state, so that a row in many
//! small pieces costs no more than one in a large piece.

use tidepool_base::{Error, Result, SqlState};

/// What ends lines; the first line decides for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LineEnd {
    Unknown,
    Newline,
    Return,
    ReturnNewline,
}

/// A whole row within the buffer it was found in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    pub start: usize,
    /// End of the content, line end excluded.
    pub end: usize,
    /// Where the next line starts.
    pub next: usize,
    /// Line breaks within quoted fields.
    pub inner_breaks: u64,
}

#[derive(Debug)]
pub struct LineSplitter {
    /// `None` for text; quote and escape for CSV.
    csv: Option<(u8, u8)>,
    line_end: LineEnd,
    /// How far from the row's start it was looked at, and in which state.
    scanned: usize,
    in_quote: bool,
    /// The byte before was an escape within quotes that is not the quote itself.
    escaped: bool,
    inner_breaks: u64,
}

impl LineSplitter {
    pub fn new(csv: Option<(u8, u8)>) -> LineSplitter {
        LineSplitter { csv, line_end: LineEnd::Unknown, scanned: 0, in_quote: false, escaped: false, inner_breaks: 0 }
    }

    /// True while a quoted field is open where the bytes end.
    pub fn in_quote(&self) -> bool {
        self.in_quote
    }

    /// The row that starts at `start`, if it is whole. With `last`, the end of the bytes ends a row too.
    pub fn next(&mut self, bytes: &[u8], start: usize, last: bool) -> Result<Option<Line>> {
        let mut position = start + self.scanned;
        loop {
            let found = match self.csv {
                None => memchr::memchr3(b'\n', b'\r', b'\\', &bytes[position..]),
                Some((quote, escape)) => {
                    if self.escaped {
                        if position < bytes.len() {
                            self.escaped = false;
                            position += 1;
                            continue;
                        }
                        None
                    } else if self.in_quote && escape != quote {
                        find4(&bytes[position..], [quote, escape, b'\n', b'\r'])
                    } else {
                        memchr::memchr3(quote, b'\n', b'\r', &bytes[position..])
                    }
                }
            };
            let Some(found) = found else {
                self.scanned = bytes.len().max(position) - start;
                if last && start < bytes.len() {
                    return Ok(Some(self.line(start, bytes.len(), bytes.len())));
                }
                return Ok(None);
            };
            position += found;
            let byte = bytes[position];
            if let Some((quote, escape)) = self.csv {
                if self.in_quote && byte == escape && escape != quote {
                    self.escaped = true;
                    position += 1;
                    continue;
                }
                if byte == quote {
                    self.in_quote = !self.in_quote;
                    position += 1;
                    continue;
                }
                if self.in_quote {
                    // `\r\n` within quotes is one line of the file.
                    let counted = match byte {
                        b'\n' => self.line_end != LineEnd::Return,
                        _ => self.line_end == LineEnd::Return,
                    };
                    self.inner_breaks += u64::from(counted);
                    position += 1;
                    continue;
                }
            } else if byte == b'\\' {
                // The next byte belongs to the escape, whatever it is.
                if position + 1 >= bytes.len() {
                    self.scanned = position - start;
                    if last {
                        return Ok(Some(self.line(start, bytes.len(), bytes.len())));
                    }
                    return Ok(None);
                }
                position += 2;
                // A line end of two bytes is escaped as a whole.
                if bytes[position - 1] == b'\r' && self.line_end == LineEnd::ReturnNewline {
                    match bytes.get(position) {
                        Some(b'\n') => position += 1,
                        Some(_) => {}
                        None if last => {}
                        None => {
                            self.scanned = position - 2 - start;
                            return Ok(None);
                        }
                    }
                }
                continue;
            }
            if byte == b'\n' {
                match self.line_end {
                    LineEnd::Unknown => self.line_end = LineEnd::Newline,
                    LineEnd::Newline => {}
                    LineEnd::Return | LineEnd::ReturnNewline => return Err(self.literal("newline", "\\n")),
                }
                return Ok(Some(self.line(start, position, position + 1)));
            }
            // A return: whether a newline follows must be known.
            let next = bytes.get(position + 1);
            if next.is_none() && !last && self.line_end != LineEnd::Return {
                self.scanned = position - start;
                return Ok(None);
            }
            let pair = next == Some(&b'\n');
            match (self.line_end, pair) {
                (LineEnd::Unknown, true) => self.line_end = LineEnd::ReturnNewline,
                (LineEnd::Unknown, false) => self.line_end = LineEnd::Return,
                (LineEnd::ReturnNewline, true) | (LineEnd::Return, _) => {}
                (LineEnd::Newline, _) | (LineEnd::ReturnNewline, false) => {
                    return Err(self.literal("carriage return", "\\r"));
                }
            }
            let width = if self.line_end == LineEnd::ReturnNewline { 2 } else { 1 };
            return Ok(Some(self.line(start, position, position + width)));
        }
    }

    fn line(&mut self, start: usize, end: usize, next: usize) -> Line {
        let line = Line { start, end, next, inner_breaks: self.inner_breaks };
        self.scanned = 0;
        self.inner_breaks = 0;
        line
    }

    #[cold]
    fn literal(&self, what: &str, escape: &str) -> Error {
        if self.csv.is_some() {
            Error::new(SqlState::BAD_COPY_FILE_FORMAT, format!("unquoted {what} found in data"))
                .with_hint(format!("Use quoted CSV field to represent {what}."))
        } else {
            Error::new(SqlState::BAD_COPY_FILE_FORMAT, format!("literal {what} found in data"))
                .with_hint(format!("Use \"{escape}\" to represent {what}."))
        }
    }
}

fn find4(bytes: &[u8], wanted: [u8; 4]) -> Option<usize> {
    bytes.iter().position(|byte| wanted.contains(byte))
}
