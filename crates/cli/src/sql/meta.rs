//! Backslash commands.

use super::copy::CopyCommand;
use super::shell::{Flow, Shell, tell};
use super::table::Expanded;
use std::path::Path;
use tidepool_base::{Error, Result, SqlState};

const HELP: &str = "  \\d              tables and views          \\d NAME    columns of a table or view
  \\dt \\dt+        tables, with sizes        \\dv        views
  \\db \\db+        tablespaces               \\dn        schemas
  \\du             roles                     \\l         databases
  \\copy T FROM|TO 'FILE' [WITH (…)]         COPY from or to a file on this side
  \\i FILE         run a file                \\timing    show how long statements take on/off
  \\x [on|off|auto]                          one line a column; auto: where it does not fit otherwise
  \\null TEXT      what stands for NULL
  \\conninfo       the connection            \\?         this help
  \\q              quit                      help, quit, exit without a backslash
Tab completes keywords and names. Statements end with a semicolon. Ctrl-C stops the one that runs.
";

/// All commands, for completion.
pub const COMMANDS: &[&str] = &[
    "\\?",
    "\\conninfo",
    "\\copy",
    "\\d",
    "\\db",
    "\\dn",
    "\\dt",
    "\\du",
    "\\dv",
    "\\i",
    "\\l",
    "\\null",
    "\\q",
    "\\timing",
    "\\x",
];

/// Runs one backslash command.
pub fn run(shell: &mut Shell<'_>, line: &str) -> Result<Flow> {
    let (name, argument) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
    let argument = argument.trim();
    let word = argument.trim_end_matches(';').trim();
    match name.trim_end_matches(';') {
        "\\q" | "\\quit" | "\\exit" => Ok(Flow::Quit),
        "\\?" | "\\h" | "\\help" => {
            print!("{HELP}");
            Ok(Flow::Continue)
        }
        "\\x" => {
            shell.style.expanded = match word {
                "auto" => Expanded::Auto,
                _ if toggled(shell.style.expanded == Expanded::On, word) => Expanded::On,
                _ => Expanded::Off,
            };
            println!("Expanded display is {}.", match shell.style.expanded {
                Expanded::On => "on",
                Expanded::Off => "off",
                Expanded::Auto => "used for results wider than the screen",
            });
            Ok(Flow::Continue)
        }
        "\\null" => {
            shell.style.null = word.trim_matches('\'').to_owned();
            println!("Null display is \"{}\".", shell.style.null);
            Ok(Flow::Continue)
        }
        "\\timing" => {
            shell.timing = toggled(shell.timing, word);
            println!("Timing is {}.", if shell.timing { "on" } else { "off" });
            Ok(Flow::Continue)
        }
        "\\i" | "\\include" => {
            let path = word.trim_matches('\'');
            match std::fs::read_to_string(path) {
                Ok(text) => shell.run_script(&text, Some(Path::new(path))),
                Err(error) => {
                    tell(&Error::io(format_args!("read file \"{path}\""), &error));
                    Ok(Flow::Failed)
                }
            }
        }
        "\\copy" => match CopyCommand::parse(argument) {
            Ok(command) => shell.run_copy(&command),
            Err(error) => {
                tell(&error);
                Ok(Flow::Failed)
            }
        },
        "\\conninfo" => shell.run_sql(
            "SELECT current_database() AS \"Database\", current_user AS \"User\", version() AS \"Server\"",
        ),
        "\\d" | "\\d+" if !word.is_empty() => describe(shell, word),
        "\\d" | "\\d+" => shell.run_sql(&relations(&["r", "v"])),
        "\\dt" => shell.run_sql(&relations(&["r"])),
        "\\dv" | "\\dv+" => shell.run_sql(&relations(&["v"])),
        "\\dt+" => shell.run_sql(TABLES),
        "\\db" => shell.run_sql(
            "SELECT name AS \"Name\", location AS \"Location\", bytes_size AS \"Bytes\", \
             bytes_used AS \"Used\", profile AS \"Profile\" FROM tidepool.tablespaces ORDER BY name",
        ),
        "\\db+" => shell.run_sql("SELECT * FROM tidepool.tablespaces ORDER BY name"),
        "\\dn" | "\\dn+" => shell.run_sql(
            "SELECT nspname AS \"Name\", pg_get_userbyid(nspowner) AS \"Owner\" FROM pg_catalog.pg_namespace ORDER BY 1",
        ),
        "\\du" | "\\du+" => shell.run_sql(
            "SELECT rolname AS \"Role name\", rolsuper AS \"Superuser\", rolcanlogin AS \"Can log in\" \
             FROM pg_catalog.pg_roles ORDER BY 1",
        ),
        "\\l" | "\\l+" => shell.run_sql(
            "SELECT datname AS \"Name\", pg_get_userbyid(datdba) AS \"Owner\" FROM pg_catalog.pg_database ORDER BY 1",
        ),
        other => {
            tell(&Error::new(SqlState::SYNTAX_ERROR, format!("unknown command: {other}")).with_hint("\\? shows them all."));
            Ok(Flow::Failed)
        }
    }
}

/// The backslash command that a line at an empty prompt is: also `help`, `quit` and `exit`, which people try who know none.
pub fn command_of(line: &str) -> Option<&str> {
    match line.trim_end_matches(';').trim_end().to_ascii_lowercase().as_str() {
        "help" => Some("\\?"),
        "quit" | "exit" => Some("\\q"),
        _ => line.starts_with('\\').then_some(line),
    }
}

fn toggled(now: bool, word: &str) -> bool {
    match word {
        "on" => true,
        "off" => false,
        _ => !now,
    }
}

const TABLES: &str = "SELECT table_name AS \"Name\", tablespace AS \"Tablespace\", rows AS \"Rows\", \
     bytes_raw AS \"Bytes raw\", bytes_encoded AS \"Bytes encoded\" \
     FROM tidepool.tables WHERE column_name IS NULL ORDER BY 1";

fn relations(kinds: &[&str]) -> String {
    let kinds: Vec<String> = kinds.iter().map(|kind| format!("'{kind}'")).collect();
    format!(
        "SELECT n.nspname AS \"Schema\", c.relname AS \"Name\", \
         CASE c.relkind WHEN 'r' THEN 'table' ELSE 'view' END AS \"Type\" \
         FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         WHERE c.relkind IN ({}) AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'tidepool') ORDER BY 1, 2",
        kinds.join(", ")
    )
}

/// The columns of a table or view: `name` or `schema.name`, folded as SQL folds names.
fn describe(shell: &mut Shell<'_>, name: &str) -> Result<Flow> {
    let mut parts: Vec<String> = Vec::new();
    let (mut part, mut quoted) = (String::new(), false);
    for character in name.chars() {
        match character {
            '"' => quoted = !quoted,
            '.' if !quoted => parts.push(std::mem::take(&mut part)),
            c if quoted => part.push(c),
            c => part.extend(c.to_lowercase()),
        }
    }
    parts.push(part);
    let (schema, table) = match parts.as_slice() {
        [table] => ("public", table.as_str()),
        [schema, table] => (schema.as_str(), table.as_str()),
        _ => {
            tell(&Error::new(SqlState::INVALID_NAME, format!("improper relation name: {name}")));
            return Ok(Flow::Failed);
        }
    };
    let literal = |text: &str| format!("'{}'", text.replace('\'', "''"));
    shell.run_sql(&format!(
        "SELECT a.attname AS \"Column\", format_type(a.atttypid, a.atttypmod) AS \"Type\", \
         CASE WHEN a.attnotnull THEN 'not null' ELSE '' END AS \"Nullable\", \
         t.tablespace AS \"Tablespace\", t.bytes_encoded AS \"Bytes encoded\", t.encodings AS \"Encodings\" \
         FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_class c ON c.oid = a.attrelid \
         JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace \
         LEFT JOIN tidepool.tables t ON n.nspname = 'public' AND t.table_name = c.relname AND t.column_name = a.attname \
         WHERE n.nspname = {} AND c.relname = {} AND a.attnum > 0 ORDER BY a.attnum",
        literal(schema),
        literal(table)
    ))
}
