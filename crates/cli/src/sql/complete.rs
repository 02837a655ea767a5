//! What the Tab key proposes: keywords, and the names that the server knows.

use super::client::{Client, Event};
use super::meta;
use rustyline::completion::Completer;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::validate::Validator;
use rustyline::{Context, Helper};
use std::collections::{BTreeMap, BTreeSet};
use tidepool_base::Result;

/// Proposals beyond these would fill the screen.
const PROPOSALS_MAX: usize = 500;

const KEYWORDS: &[&str] = &[
    "ADD",
    "ALL",
    "ALTER",
    "ANALYZE",
    "AND",
    "ANY",
    "AS",
    "ASC",
    "BEGIN",
    "BETWEEN",
    "BY",
    "CALL",
    "CASCADE",
    "CASE",
    "CAST",
    "CHECK",
    "CHECKPOINT",
    "COLUMN",
    "COMMENT",
    "COMMIT",
    "CONFLICT",
    "CONSTRAINT",
    "COPY",
    "CREATE",
    "CROSS",
    "CURSOR",
    "DECLARE",
    "DEFAULT",
    "DELETE",
    "DESC",
    "DISTINCT",
    "DO",
    "DROP",
    "ELSE",
    "END",
    "EXCEPT",
    "EXISTS",
    "EXPLAIN",
    "FALSE",
    "FETCH",
    "FIRST",
    "FOR",
    "FOREIGN",
    "FROM",
    "FULL",
    "GRANT",
    "GROUP",
    "HAVING",
    "IF",
    "ILIKE",
    "IN",
    "INDEX",
    "INNER",
    "INSERT",
    "INTERSECT",
    "INTERVAL",
    "INTO",
    "IS",
    "JOIN",
    "KEY",
    "LAST",
    "LATERAL",
    "LEFT",
    "LIKE",
    "LIMIT",
    "LOCATION",
    "LOCK",
    "MATERIALIZED",
    "MERGE",
    "NOT",
    "NOTHING",
    "NULL",
    "NULLS",
    "OFFSET",
    "ON",
    "OR",
    "ORDER",
    "OUTER",
    "OVER",
    "PARTITION",
    "PLACEMENT",
    "PRIMARY",
    "REFERENCES",
    "RENAME",
    "RESET",
    "RETURNING",
    "REVOKE",
    "RIGHT",
    "ROLE",
    "ROLLBACK",
    "SAVEPOINT",
    "SCHEMA",
    "SELECT",
    "SEQUENCE",
    "SET",
    "SHOW",
    "TABLE",
    "TABLESPACE",
    "THEN",
    "TO",
    "TRANSACTION",
    "TRUE",
    "TRUNCATE",
    "UNION",
    "UNIQUE",
    "UPDATE",
    "USING",
    "VACUUM",
    "VALUES",
    "VIEW",
    "WHEN",
    "WHERE",
    "WINDOW",
    "WITH",
];

/// The answers' order is the fields' of [`Names`].
const QUERIES: [&str; 5] = [
    "SELECT n.nspname, c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
     WHERE c.relkind IN ('r', 'v', 'p') LIMIT 20000",
    "SELECT c.relname, a.attname FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid = a.attrelid \
     WHERE c.relkind IN ('r', 'v', 'p') AND a.attnum > 0 LIMIT 100000",
    "SELECT name, '' FROM pg_catalog.pg_settings",
    "SELECT name, '' FROM tidepool.tablespaces",
    "SELECT DISTINCT proname, '' FROM pg_catalog.pg_proc",
];

/// What a database has names for.
#[derive(Debug, Default)]
pub struct Names {
    /// Names of relations by schema.
    relations: BTreeMap<String, BTreeSet<String>>,
    /// Columns by the name of their relation, whatever its schema.
    columns: BTreeMap<String, BTreeSet<String>>,
    settings: BTreeSet<String>,
    tablespaces: BTreeSet<String>,
    functions: BTreeSet<String>,
}

impl Names {
    /// Asks the server. A name that cannot be had is not proposed. `Err` is the connection's end.
    pub async fn load(client: &mut Client) -> Result<Names> {
        let mut names = Names::default();
        for (number, query) in QUERIES.iter().enumerate() {
            for (first, second) in pairs(client, query).await? {
                match number {
                    0 => _ = names.relations.entry(first).or_default().insert(second),
                    1 => _ = names.columns.entry(first).or_default().insert(second),
                    2 => _ = names.settings.insert(first),
                    3 => _ = names.tablespaces.insert(first),
                    _ => _ = names.functions.insert(first),
                }
            }
        }
        Ok(names)
    }

    /// What may stand for the word that `text` ends in: the word's place, and what replaces it.
    pub fn proposals(&self, text: &str) -> (usize, Vec<String>) {
        let is_of_word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '$' | '"');
        let start =
            text.rfind(|c| !is_of_word(c)).map_or(0, |at| at + text[at..].chars().next().map_or(1, char::len_utf8));
        let (before, word) = text.split_at(start);
        if before.trim() == "\\" && before.ends_with('\\') {
            return (start - 1, sorted(meta::COMMANDS.iter().copied(), &format!("\\{word}")));
        }
        if let Some(qualified) = before.strip_suffix('.') {
            let from = qualified.rfind(|c| !is_of_word(c)).map_or(0, |at| at + 1);
            return (start, self.qualified(text, &unquoted(&qualified[from..]), word));
        }
        let mut proposals = match last_word(before).as_str() {
            "tablespace" => self.tablespaces.iter().cloned().collect(),
            "set" | "show" | "reset" | "local" | "session" => self.settings.iter().cloned().collect(),
            "from" | "join" | "into" | "update" | "table" | "view" | "on" | "copy" => self.visible_relations(),
            _ => Vec::new(),
        };
        if proposals.is_empty() {
            proposals = self.columns_near(text);
            if !word.is_empty() {
                proposals.extend(self.visible_relations());
                proposals.extend(self.functions.iter().map(|name| format!("{name}(")));
            }
        }
        let names = proposals.iter().map(|name| quoted(name));
        let mut found = sorted(names.collect::<Vec<_>>().iter().map(String::as_str), word);
        if !word.is_empty() {
            let is_upper = word.chars().any(char::is_uppercase);
            let keyword = |keyword: &&str| if is_upper { (*keyword).to_owned() } else { keyword.to_lowercase() };
            let keywords: Vec<String> = KEYWORDS.iter().map(keyword).collect();
            found.extend(sorted(keywords.iter().map(String::as_str), word));
        }
        found.truncate(PROPOSALS_MAX);
        (start, found)
    }

    /// After `qualifier.`: relations of a schema, or columns of a relation, by its name or by the alias that the text gives it.
    fn qualified(&self, text: &str, qualifier: &str, word: &str) -> Vec<String> {
        let of_schema = self.relations.get(qualifier);
        let relation = if self.columns.contains_key(qualifier) {
            Some(qualifier.to_owned())
        } else {
            self.aliased(text, qualifier)
        };
        let of_relation = relation.and_then(|relation| self.columns.get(&relation));
        let names: Vec<String> = of_schema.into_iter().chain(of_relation).flatten().map(|name| quoted(name)).collect();
        sorted(names.iter().map(String::as_str), word)
    }

    /// The relation that an alias stands for: the word before it, or before `AS`.
    fn aliased(&self, text: &str, alias: &str) -> Option<String> {
        let words: Vec<String> = words(text).collect();
        let place = |at: usize| match words.get(at.checked_sub(1)?)?.as_str() {
            "as" => words.get(at.checked_sub(2)?),
            _ => words.get(at - 1),
        };
        let places = words.iter().enumerate().filter(|(_, word)| word.as_str() == alias);
        places.filter_map(|(at, _)| place(at)).find(|name| self.columns.contains_key(*name)).cloned()
    }

    /// Columns of the relations that the text names.
    fn columns_near(&self, text: &str) -> Vec<String> {
        let columns: BTreeSet<&String> = words(text).filter_map(|word| self.columns.get(&word)).flatten().collect();
        columns.into_iter().cloned().collect()
    }

    /// Names that need no schema, and schemas.
    fn visible_relations(&self) -> Vec<String> {
        let is_system = |schema: &str| matches!(schema, "pg_catalog" | "information_schema" | "tidepool");
        let own = self.relations.iter().filter(|(schema, _)| !is_system(schema));
        let names = own.flat_map(|(_, names)| names).cloned();
        names.chain(self.relations.keys().map(|schema| format!("{schema}."))).collect()
    }
}

/// The rows of a query of two columns; none where it fails.
async fn pairs(client: &mut Client, query: &str) -> Result<Vec<(String, String)>> {
    client.query(query).await?;
    let mut pairs = Vec::new();
    loop {
        match client.event().await? {
            Event::Row(values) => {
                let text = |at: usize| {
                    let value = values.get(at).and_then(Option::as_ref);
                    value.map(|value| String::from_utf8_lossy(value).into_owned()).unwrap_or_default()
                };
                pairs.push((text(0), text(1)));
            }
            Event::Failed(_) => pairs.clear(),
            Event::Ready => return Ok(pairs),
            _ => {}
        }
    }
}

/// Words of a text, as SQL folds names.
fn words(text: &str) -> impl Iterator<Item = String> + '_ {
    let words = text.split(|c: char| !(c.is_alphanumeric() || matches!(c, '_' | '$' | '"')));
    words.filter(|word| !word.is_empty()).map(unquoted)
}

fn last_word(text: &str) -> String {
    words(text).last().unwrap_or_default()
}

fn unquoted(word: &str) -> String {
    match word.strip_prefix('"') {
        Some(name) => name.trim_end_matches('"').to_owned(),
        None => word.to_lowercase(),
    }
}

/// As it stands in SQL. What ends in a point or a parenthesis goes on there.
fn quoted(name: &str) -> String {
    let plain = name.trim_end_matches(['.', '(']);
    let is_plain = plain.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
        && !plain.starts_with(|c: char| c.is_ascii_digit());
    if is_plain { name.to_owned() } else { format!("\"{}\"{}", plain.replace('"', "\"\""), &name[plain.len()..]) }
}

/// Those that begin with the word, whatever its case, in order and each once.
fn sorted<'n>(names: impl Iterator<Item = &'n str>, word: &str) -> Vec<String> {
    let folded = word.to_lowercase();
    let begins = |name: &&str| {
        name.to_lowercase().starts_with(&folded) || name.trim_start_matches('"').to_lowercase().starts_with(&folded)
    };
    names.filter(begins).map(str::to_owned).collect::<BTreeSet<String>>().into_iter().collect()
}

/// The line editor's helper.
#[derive(Debug, Default)]
pub struct Proposer {
    pub names: Names,
    /// Lines of the statement before the one that is edited.
    pub pending: String,
}

impl Completer for Proposer {
    type Candidate = String;

    fn complete(&self, line: &str, position: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<String>)> {
        let text = format!("{}{}", self.pending, &line[..position]);
        let (start, proposals) = self.names.proposals(&text);
        // A word goes over no line's end.
        Ok((start.saturating_sub(self.pending.len()), proposals))
    }
}

impl Hinter for Proposer {
    type Hint = String;
}

impl Highlighter for Proposer {}
impl Validator for Proposer {}
impl Helper for Proposer {}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Names {
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        Names {
            relations: [
                ("public".to_owned(), set(&["trips", "Odd name"])),
                ("tidepool".to_owned(), set(&["memory", "tables"])),
            ]
            .into(),
            columns: [
                ("trips".to_owned(), set(&["fare", "id", "started"])),
                ("Odd name".to_owned(), set(&["a b"])),
                ("memory".to_owned(), set(&["bytes"])),
            ]
            .into(),
            settings: set(&["statement_timeout", "search_path"]),
            tablespaces: set(&["near", "far"]),
            functions: set(&["lower", "length"]),
        }
    }

    fn proposed(text: &str) -> Vec<String> {
        names().proposals(text).1
    }

    #[test]
    fn what_is_proposed_depends_on_what_stands_before() {
        assert_eq!(proposed("sel"), ["select"]);
        assert_eq!(proposed("SEL"), ["SELECT"]);
        assert_eq!(proposed("SELECT * FROM tr"), ["trips", "transaction", "true", "truncate"]);
        assert_eq!(proposed("ALTER TABLE trips SET TABLESPACE "), ["far", "near"]);
        assert_eq!(proposed("SET s")[..2], ["search_path", "statement_timeout"]);
        assert_eq!(proposed("SELECT * FROM tidepool."), ["memory", "tables"]);
        assert_eq!(proposed("SELECT * FROM tidepool.me"), ["memory"]);
        assert_eq!(proposed("SELECT trips."), ["fare", "id", "started"]);
        assert_eq!(proposed("SELECT * FROM trips AS t WHERE t.f"), ["fare"]);
        assert_eq!(proposed("SELECT * FROM trips t\nWHERE t.st"), ["started"]);
        assert_eq!(proposed("SELECT * FROM trips WHERE f")[0], "fare");
        assert_eq!(proposed("SELECT low"), ["lower("]);
        assert_eq!(proposed("SELECT * FROM \"Od"), ["\"Odd name\""]);
        assert_eq!(proposed("SELECT * FROM od"), ["\"Odd name\""]);
    }

    #[test]
    fn commands_are_proposed_at_the_beginning() {
        let (start, proposals) = names().proposals("\\ti");
        assert_eq!((start, proposals), (0, vec!["\\timing".to_owned()]));
    }

    #[test]
    fn a_place_is_a_bytes() {
        let text = "SELECT 'ä', fa";
        let (start, _) = names().proposals(text);
        assert_eq!(&text[start..], "fa");
    }
}
