//! Statements that another process's clients have prepared, prepared here before these clients come.
//!
//! A standby that takes over gets all clients of the primary at once, and each begins with a statement that nobody has
//! planned there. Planning one takes a millisecond, and the first of a process several. So the primary says what its sessions
//! have in common, and the standby prepares it: as the same user, under the same settings, for what exists there. What comes
//! of that is in the caches that all sessions share, and counts as anything else there does.

use crate::direct::cache::{Known, OfText};
use crate::direct::template::Template;
use crate::planner::Planner;
use crate::settings::{self, Settings};
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tidepool_base::{Error, Result};

/// Longer texts are not passed on.
const TEXT_BYTES_MAX: usize = 16 << 10;

/// A statement as a client prepared it, or as a text without parameters has it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StatementInUse {
    user: String,
    /// Those that are not as a session of the user begins with.
    settings: Vec<(String, String)>,
    text: String,
    /// The types that the client gave.
    oids: Vec<u32>,
    /// Of a text whose literals stand apart: a letter for each literal's kind.
    kinds: Option<String>,
}

impl StatementInUse {
    pub fn to_bytes(&self) -> Vec<u8> {
        let StatementInUse { user, settings, text, oids, kinds } = self;
        serde_json::json!([user, settings, text, oids, kinds]).to_string().into_bytes()
    }

    /// `None` for what a later release says otherwise.
    pub fn from_bytes(bytes: &[u8]) -> Option<StatementInUse> {
        let (user, settings, text, oids, kinds) = serde_json::from_slice(bytes).ok()?;
        Some(StatementInUse { user, settings, text, oids, kinds })
    }

    fn new(planner: &Planner, known: &Known, text: &str, oids: Vec<u32>, kinds: Option<String>) -> StatementInUse {
        let user = known.settings.get("session_authorization").unwrap_or_default();
        let at_first = Settings::new(planner.database(), &user);
        let settings = settings::differences(&at_first, &known.settings);
        StatementInUse { user, settings, text: text.to_owned(), oids, kinds }
    }
}

/// What was looked at already of what sessions have in common, so that a look costs little where there is nothing new.
#[derive(Debug, Default)]
pub struct LookedAt(HashSet<u64>);

/// Of what was looked at so much is remembered.
const LOOKED_AT_MAX: usize = 8_192;

impl LookedAt {
    /// Settings of what is made anew are others, by their address.
    fn is_new(&mut self, key: &str, known: &Known) -> bool {
        let mut hasher = DefaultHasher::new();
        (key, known.role, Arc::as_ptr(&known.settings).addr()).hash(&mut hasher);
        // Of two with one hash, one is not passed on.
        self.0.insert(hasher.finish())
    }
}

impl Planner {
    /// What sessions have prepared for what exists now and was not looked at before, at most so many: what most of them have in common
    /// first.
    pub fn statements_in_use(&self, most: usize, looked_at: &mut LookedAt) -> Vec<StatementInUse> {
        if looked_at.0.len() > LOOKED_AT_MAX {
            looked_at.0.clear();
        }
        let state = self.database().state();
        let is_now = |known: &Known| known.state.is_of(&state);
        let mut statements = Vec::new();
        for (key, prepared) in self.prepared.list() {
            let mut parts = key.split('\0');
            let text = parts.next().unwrap_or_default();
            let oids = parts.map(str::parse).collect::<std::result::Result<Vec<u32>, _>>();
            if let Ok(oids) = oids
                && is_now(prepared.known())
                && text.len() <= TEXT_BYTES_MAX
                && looked_at.is_new(&key, prepared.known())
            {
                statements.push(StatementInUse::new(self, prepared.known(), text, oids, None));
            }
            if statements.len() == most {
                return statements;
            }
        }
        for (key, known) in self.programs.list() {
            // Those of prepared statements have the types of their parameters behind the letters.
            let of_text = key.split_once('\0').filter(|(_, kinds)| !kinds.contains(','));
            if let Some((text, kinds)) = of_text
                && known.program.is_some()
                && is_now(&known)
                && text.len() <= TEXT_BYTES_MAX
                && looked_at.is_new(&key, &known)
            {
                statements.push(StatementInUse::new(self, &known, text, Vec::new(), Some(kinds.to_owned())));
            }
            if statements.len() == most {
                break;
            }
        }
        statements
    }

    /// Prepares a statement for whoever comes with it, and waits for that. Not for threads that serve others.
    pub fn prepare_ahead(self: &Arc<Self>, statement: &StatementInUse) -> Result<()> {
        let (planner, statement) = (Arc::clone(self), statement.clone());
        let preparing = async move {
            let mut session = planner.session(&statement.user);
            for (name, value) in &statement.settings {
                session.set(name, value)?;
            }
            match statement.kinds {
                Some(kinds) => {
                    let template = Template { text: statement.text, given: 0, literals: Vec::new(), kinds };
                    session.program_of(&template, &[]).await;
                }
                None => _ = session.prepare_statement(&statement.text, &statement.oids).await?,
            }
            Ok(())
        };
        let workers = self.workers();
        workers.block_on(workers.spawn(preparing)).map_err(|_| Error::internal("a statement was not prepared"))??;
        self.prepared_ahead.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// How many statements were prepared before a client came with them.
    pub fn prepared_ahead(&self) -> u64 {
        self.prepared_ahead.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidepool_database::Database;
    use tidepool_database::config::ConfigBuilder;

    const INSERT: &str = "INSERT INTO t VALUES ($1, $2)";
    const BY_KEY: &str = "SELECT name FROM t WHERE id = 7";

    fn planner() -> Arc<Planner> {
        let config = ConfigBuilder::new().near("64MB").unwrap().far("64MB").unwrap().build().unwrap();
        let planner = Planner::new(Database::open(config).unwrap()).unwrap();
        in_session(&planner, async |session| {
            for statement in crate::statement::parse("CREATE TABLE t (id int PRIMARY KEY, name text)").unwrap() {
                session.execute(&statement, &[]).await.unwrap();
            }
        });
        planner
    }

    fn in_session<T>(planner: &Arc<Planner>, work: impl AsyncFnOnce(&mut crate::Session) -> T) -> T {
        let mut session = planner.session("tidepool");
        planner.workers().block_on(work(&mut session))
    }

    #[test]
    fn what_one_process_has_prepared_another_one_finds_prepared() {
        let (primary, standby) = (planner(), planner());
        for _ in 0..2 {
            in_session(&primary, async |session| {
                session.set("application_name", "'orders'").unwrap();
                session.prepare_statement(INSERT, &[]).await.unwrap();
                assert!(session.direct_of_text(BY_KEY).await.is_some());
            });
        }
        let mut looked_at = LookedAt::default();
        let in_use = primary.statements_in_use(10, &mut looked_at);
        assert_eq!(in_use[0].text, INSERT);
        assert!(primary.statements_in_use(10, &mut looked_at).is_empty());
        assert_eq!(primary.statements_in_use(1, &mut LookedAt::default()).len(), 1);
        for statement in &in_use {
            let passed = StatementInUse::from_bytes(&statement.to_bytes()).unwrap();
            assert_eq!(passed, *statement);
            standby.prepare_ahead(&passed).unwrap();
        }
        assert_eq!(standby.prepared_ahead(), in_use.len() as u64);
        let ahead: Vec<_> = standby.prepared.list().into_iter().map(|(_, prepared)| prepared).collect();
        let programs = standby.programs.list().len();
        in_session(&standby, async |session| {
            session.set("application_name", "'orders'").unwrap();
            let prepared = session.prepare_statement(INSERT, &[]).await.unwrap();
            assert!(ahead.iter().any(|ahead| Arc::ptr_eq(ahead, &prepared)));
            assert!(session.direct_of_text(BY_KEY).await.is_some());
        });
        assert_eq!(standby.programs.list().len(), programs);
    }

    #[test]
    fn what_cannot_be_prepared_here_is_told_and_does_no_harm() {
        let (primary, standby) = (planner(), planner());
        in_session(&primary, async |session| session.prepare_statement(INSERT, &[]).await.map(drop)).unwrap();
        in_session(&standby, async |session| {
            for statement in crate::statement::parse("DROP TABLE t").unwrap() {
                session.execute(&statement, &[]).await.unwrap();
            }
        });
        let in_use = primary.statements_in_use(10, &mut LookedAt::default());
        assert!(!in_use.is_empty());
        assert!(in_use.iter().any(|statement| standby.prepare_ahead(statement).is_err()));
        assert_eq!(StatementInUse::from_bytes(b"[1, 2]"), None);
        assert!(standby.statements_in_use(10, &mut LookedAt::default()).is_empty());
    }
}
