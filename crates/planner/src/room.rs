//! Room for parsing and planning long texts.
//!
//! What a syntax tree and a plan take cannot be refused while they are made, as memory of the process has no other end than the process's own. So a long
//! text has its room set apart before it is parsed: of what the process may use beside its tablespaces, or else of a tablespace in this machine's memory, where
//! nobody else can have it meanwhile. Short texts take little enough, and nobody counts them.

use crate::planner::Planner;
use std::sync::atomic::{AtomicU64, Ordering};
use tidepool_base::{ByteSize, Error, Result, SqlState};
use tidepool_device::Location;
use tidepool_tablespace::{Purpose, Region};

/// Shorter texts are not counted, but for those with more relations than a few. Those below the second bound cannot have many.
pub const LONG_TEXT_BYTES: usize = 16 << 10;
const COUNTED_TEXT_BYTES: usize = 2 << 10;
const FEW_RELATIONS: u64 = 16;

/// What tree and plan take for each token of a text, in bytes: measured (`VmHWM`) of long lists of constants, arms of `CASE` and arguments.
const TOKEN_BYTES: u64 = 1_900;
/// As much of rows that an `INSERT` spells out, and of an operator or a call there, which has all of them planned.
const INSERTED_TOKEN_BYTES: u64 = 600;
const INSERTED_OPERATOR_BYTES: u64 = 8_000;
/// For each `SELECT`, and each relation that is joined in a `FROM`: nodes of the plan are written anew many times. Each node of a join has all
/// columns below it.
const QUERY_BYTES: u64 = 110_000;
const RELATION_BYTES: u64 = 105_000;
const RELATIONS_SQUARED_BYTES: u64 = 200;
/// For each statement of a text of several.
const STATEMENT_BYTES: u64 = 10_000;
/// Copies of the text, and those of quoted texts beyond that.
const TEXT_COPIES: u64 = 4;
const QUOTED_COPIES: u64 = 12;

/// Shorter rows are not counted; longer ones are there as they came, as values, and as rows to be encoded.
const LONG_ROW_BYTES: usize = 1 << 20;
const ROW_COPIES: u64 = 4;

/// A tablespace gives room in pieces of this size: it may have no long free run.
const PIECE_BYTES: u64 = 16 << 20;

/// Texts that are planned now.
#[derive(Debug, Default)]
pub(crate) struct Room {
    /// Of what the process has beside its tablespaces.
    taken: AtomicU64,
}

/// Room that is set apart until dropped.
pub struct PlanningRoom {
    planner: std::sync::Arc<Planner>,
    bytes: u64,
    /// Of it what is the process's own.
    own_bytes: u64,
    _regions: Vec<Region>,
}

impl Drop for PlanningRoom {
    fn drop(&mut self) {
        self.planner.room.taken.fetch_sub(self.own_bytes, Ordering::Relaxed);
    }
}

impl Planner {
    /// Room for a text, if it is long. 53200 where there is none.
    pub fn room_for(self: &std::sync::Arc<Self>, text: &str) -> Result<Option<PlanningRoom>> {
        if text.len() < COUNTED_TEXT_BYTES {
            return Ok(None);
        }
        let counts = Counts::of(text);
        if text.len() < LONG_TEXT_BYTES && counts.relations.count() <= FEW_RELATIONS {
            return Ok(None);
        }
        let bytes = bytes_wanted(text, &counts);
        match self.room_of(bytes) {
            Some(room) => Ok(Some(room)),
            None => Err(Error::new(SqlState::OUT_OF_MEMORY, "out of memory")
                .with_detail(format!(
                    "Planning a statement of {} may take {}.",
                    ByteSize(text.len() as u64),
                    ByteSize(bytes)
                ))
                .with_hint("Send several shorter statements, parameters in place of literals, or the rows by COPY.")),
        }
    }

    /// Room for a row of a `COPY` that is not whole yet, if it is long: more than there is, so that it is not asked for each time. 53200 where there
    /// is none.
    pub(crate) fn room_for_row(
        self: &std::sync::Arc<Self>,
        room: &mut Option<PlanningRoom>,
        pending: usize,
    ) -> Result<()> {
        let wanted = pending as u64 * ROW_COPIES;
        match room {
            _ if pending < LONG_ROW_BYTES => *room = None,
            Some(room) if room.bytes >= wanted => {}
            _ => {
                // Its own room counts for it.
                *room = None;
                *room = Some(self.room_of(2 * wanted).or_else(|| self.room_of(wanted)).ok_or_else(|| {
                    Error::new(SqlState::OUT_OF_MEMORY, "out of memory").with_detail(format!(
                        "A row of more than {} may take {}.",
                        ByteSize(pending as u64),
                        ByteSize(wanted)
                    ))
                })?);
            }
        }
        Ok(())
    }

    fn room_of(self: &std::sync::Arc<Self>, bytes: u64) -> Option<PlanningRoom> {
        let planner = self.clone();
        if self.take_own(bytes) {
            return Some(PlanningRoom { planner, bytes, own_bytes: bytes, _regions: Vec::new() });
        }
        let regions = self.take_regions(bytes)?;
        Some(PlanningRoom { planner, bytes, own_bytes: 0, _regions: regions })
    }

    /// Whether it fits beside all that tablespaces and clients may come to take.
    fn take_own(&self, bytes: u64) -> bool {
        let database = self.database();
        let (mut size, mut resident) = (0, 0);
        for space in database.tablespaces().list() {
            if space.config().location.is_anonymous() {
                size += space.size_bytes();
                resident += space.usage().resident_bytes;
            }
        }
        let memory = database.client_memory();
        let config = database.config();
        let left = config.memory_limit_bytes.saturating_sub(size).saturating_sub(config.client_memory_bytes);
        let before = self.room.taken.fetch_add(bytes, Ordering::Relaxed);
        // What the process has beside its tablespaces now is part of what it may have.
        let now = memory.process_bytes().saturating_sub(resident);
        let fits = before.saturating_add(bytes).saturating_add(now.saturating_sub(before)) <= left
            && memory.has_room_for(bytes);
        if !fits {
            self.room.taken.fetch_sub(bytes, Ordering::Relaxed);
        }
        fits
    }

    /// In the last tablespace that has room: near memory is what statements want most.
    fn take_regions(&self, bytes: u64) -> Option<Vec<Region>> {
        if !self.database().client_memory().has_room_for(bytes) {
            return None;
        }
        let spaces = self.database().tablespaces().list();
        let in_memory =
            spaces.iter().rev().filter(|space| matches!(space.config().location, Location::Anon | Location::Numa(_)));
        for space in in_memory.filter(|space| space.available_bytes() >= bytes) {
            let pieces = (0..bytes.div_ceil(PIECE_BYTES)).map(|piece| {
                let len = PIECE_BYTES.min(bytes - piece * PIECE_BYTES);
                space.allocate(usize::try_from(len).ok()?, Purpose::Reserved).ok()
            });
            if let Some(regions) = pieces.collect::<Option<Vec<_>>>() {
                return Some(regions);
            }
        }
        None
    }
}

/// What a text may take while it is parsed and planned: rather more.
fn bytes_wanted(text: &str, counts: &Counts) -> u64 {
    let inserts = text.trim_start().get(..6).is_some_and(|word| word.eq_ignore_ascii_case("insert"));
    let of_tokens = match inserts {
        true => counts.tokens * INSERTED_TOKEN_BYTES + counts.operators * INSERTED_OPERATOR_BYTES,
        false => counts.tokens * TOKEN_BYTES,
    };
    let of_text = text.len() as u64 * TEXT_COPIES + counts.quoted_bytes * QUOTED_COPIES;
    of_tokens + of_text + counts.relations.bytes() + counts.statements * STATEMENT_BYTES
}

/// What a text consists of, about.
#[derive(Debug, Default, PartialEq)]
struct Counts {
    /// Words, numbers, quoted texts, and everything else by the character.
    tokens: u64,
    /// Operators between operands, and calls.
    operators: u64,
    quoted_bytes: u64,
    /// Semicolons.
    statements: u64,
    /// Of the statement that has most: they are planned one after the other.
    relations: Relations,
}

/// What a statement reads.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Relations {
    /// Words `SELECT`.
    queries: u64,
    /// Words `JOIN`, and commas behind `FROM`; and of each `FROM` the square of how many it has.
    joined: u64,
    joined_squared: u64,
}

/// Words behind which commas are no longer between relations.
const CLAUSES: [&str; 11] =
    ["select", "where", "group", "order", "having", "limit", "union", "intersect", "except", "window", "returning"];

/// Where a text is, as far as relations go: for each open parenthesis, and outside of them, the relations that were joined since its `FROM`.
struct Clauses(Vec<Option<u64>>);

impl Relations {
    fn count(self) -> u64 {
        self.queries + self.joined
    }

    fn bytes(self) -> u64 {
        self.queries * QUERY_BYTES + self.joined * RELATION_BYTES + self.joined_squared * RELATIONS_SQUARED_BYTES
    }

    /// A clause ends, or another one begins.
    fn begin_clause(&mut self, clauses: &mut Clauses, is_from: bool) {
        if let Some(last) = clauses.0.last_mut() {
            let relations = last.take().unwrap_or(0);
            self.joined += relations;
            self.joined_squared += relations * relations;
            *last = is_from.then_some(0);
        }
    }

    fn word(&mut self, clauses: &mut Clauses, word: &str) {
        let is = |other: &str| word.eq_ignore_ascii_case(other);
        if !(4..=9).contains(&word.len()) {
            return;
        }
        if is("from") {
            self.begin_clause(clauses, true);
        } else if is("join") {
            join_one_more(clauses);
        } else if CLAUSES.iter().any(|clause| is(clause)) {
            self.begin_clause(clauses, false);
            self.queries += u64::from(is("select"));
        }
    }

    /// Outside of words.
    fn character(&mut self, clauses: &mut Clauses, byte: u8) {
        match byte {
            b'(' => clauses.0.push(None),
            // More of them than were opened is an error of the text.
            b')' if clauses.0.len() > 1 => {
                self.begin_clause(clauses, false);
                clauses.0.pop();
            }
            b',' => join_one_more(clauses),
            _ => {}
        }
    }
}

fn join_one_more(clauses: &mut Clauses) {
    if let Some(Some(relations)) = clauses.0.last_mut() {
        *relations += 1;
    }
}

impl Counts {
    /// A statement ends, with what it reads.
    fn end_statement(&mut self, mut relations: Relations, mut clauses: Clauses) {
        // Also of parentheses that nobody closed.
        while !clauses.0.is_empty() {
            relations.begin_clause(&mut clauses, false);
            clauses.0.pop();
        }
        if relations.bytes() > self.relations.bytes() {
            self.relations = relations;
        }
    }

    fn of(text: &str) -> Counts {
        let mut counts = Counts::default();
        let (mut in_word, mut after_operand, mut quote) = (false, false, None);
        let (mut relations, mut clauses, mut word) = (Relations::default(), Clauses(vec![None]), 0);
        for (place, byte) in text.bytes().enumerate() {
            let goes_on =
                quote.is_none() && matches!(byte, b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' | 128..);
            if in_word && !goes_on {
                relations.word(&mut clauses, &text[word..place]);
            }
            match (quote, byte) {
                (Some(open), _) => {
                    counts.quoted_bytes += 1;
                    if byte == open {
                        quote = None;
                    }
                    continue;
                }
                (None, b'\'' | b'"') => {
                    quote = Some(byte);
                    counts.tokens += 1;
                    (in_word, after_operand) = (false, true);
                }
                (None, _) if goes_on => {
                    if !in_word {
                        counts.tokens += 1;
                        word = place;
                    }
                    (in_word, after_operand) = (true, true);
                }
                (None, b' ' | b'\t' | b'\r' | b'\n') => in_word = false,
                (None, _) => {
                    counts.tokens += 1;
                    counts.statements += u64::from(byte == b';');
                    relations.character(&mut clauses, byte);
                    if byte == b';' {
                        let ended = std::mem::replace(&mut clauses, Clauses(vec![None]));
                        counts.end_statement(std::mem::take(&mut relations), ended);
                    }
                    let is_operator = match byte {
                        b',' | b';' | b')' => false,
                        b'(' => in_word,
                        _ => after_operand,
                    };
                    counts.operators += u64::from(is_operator);
                    (in_word, after_operand) = (false, byte == b')');
                }
            }
        }
        if in_word {
            relations.word(&mut clauses, &text[word..]);
        }
        counts.end_statement(relations, clauses);
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_counted_outside_of_quotes() {
        for (text, tokens, operators, quoted_bytes, statements) in [
            ("", 0, 0, 0, 0),
            ("select 1", 2, 0, 0, 0),
            ("SELECT 'a, b, c' , \"x y\"", 4, 0, 12, 0),
            ("(1,'abc'),(-2,'it''s');", 14, 0, 9, 1),
            ("a.b+c*1.5e3 - d", 7, 3, 0, 0),
            ("(now(), '1'::int)", 10, 2, 2, 0),
            ("'open, to the end", 1, 0, 16, 0),
        ] {
            let counted = Counts::of(text);
            let counts = (counted.tokens, counted.operators, counted.quoted_bytes, counted.statements);
            assert_eq!(counts, (tokens, operators, quoted_bytes, statements), "{text}");
        }
    }

    #[test]
    fn relations_are_counted_by_the_clause_that_joins_them() {
        for (text, queries, joined, joined_squared) in [
            ("select 1", 1, 0, 0),
            ("select a,b from t,u,v where f(1,2),3", 1, 2, 4),
            ("SELECT 1 FROM t Join(select 'join, join',1,2 from a, b)x on 1, y union select 2,3)),(from a,b", 3, 4, 6),
            ("delete from", 0, 0, 0),
            ("select 1; select 1 from a, (select 2 from b, c;;; select 3", 2, 2, 2),
            ("selected.from, from_t", 0, 0, 0),
        ] {
            assert_eq!(Counts::of(text).relations, Relations { queries, joined, joined_squared }, "{text}");
        }
    }

    #[test]
    fn relations_take_room_by_the_square() {
        let bytes = |relations: usize| bytes_wanted_of(&format!("SELECT 1 FROM {}t", "t AS a, ".repeat(relations)));
        assert!((30 << 20..60 << 20).contains(&bytes(250)), "{}", bytes(250));
        assert!(bytes(10_000) > 40 * bytes(1_000));
        let arms = |arms: usize| bytes_wanted_of(&"UNION ALL SELECT 1 ".repeat(arms));
        assert!(arms(10_000) < 11 * arms(1_000));
    }

    fn bytes_wanted_of(text: &str) -> u64 {
        bytes_wanted(text, &Counts::of(text))
    }

    #[test]
    fn what_is_long_in_other_ways_takes_other_room() {
        let rows = |row: &str| format!("INSERT INTO t VALUES {}(1)", format!("{row},").repeat(10_000));
        let plain = bytes_wanted_of(&rows("(1, -2)"));
        assert!(bytes_wanted_of(&rows("(1, 3-2)")) > 2 * plain);
        assert!(bytes_wanted_of(&rows("(1, -2)").replace("INSERT INTO t", "")) > 2 * plain);
        let quoted = format!("SELECT '{}'", "x".repeat(1 << 20));
        assert!((16 << 20..18 << 20).contains(&bytes_wanted_of(&quoted)));
        assert!(bytes_wanted_of(&"SELECT 1;".repeat(1_000)) > 10_000_000);
    }
}
