//! `tidepool upgrade`: this program begins to serve in the place of one that runs, which may be of another release.
//!
//! It attaches to the pool as a standby of the server that is primary, and when it has caught up has that server hand over to it, with its
//! clients' connections, and end. Whatever fails until then leaves that server as it was, and this process ends.

use crate::rows::{literal, query};
use crate::serve::{NAME_VARIABLE, ServeArgs, serve};
use crate::sql::client::Client;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;
use tidepool_base::{ByteSize, Error, Result, SqlState};
use tidepool_database::{Database, HostRole, LIFE_LEFT_VARIABLE, PoolRole};
use tokio::time::Instant;

#[derive(Clone, Debug, clap::Args)]
pub struct UpgradeArgs {
    /// The server that is to be replaced, a primary: postgresql://USER@HOST:PORT/DATABASE
    url: String,
    /// Bytes of log that this server may be behind when it takes over
    #[arg(long, value_name = "SIZE", default_value = "16MB")]
    max_lag: ByteSize,
    /// How long it tries to take over, in seconds, once it serves
    #[arg(long, value_name = "S", default_value_t = 60)]
    upgrade_wait_s: u32,
    #[command(flatten)]
    serve: ServeArgs,
}

/// Between two tries to take over.
const TRY_INTERVAL: Duration = Duration::from_millis(100);

/// How long this server has to be primary, where the one before could not say any more that it handed over.
const PRIMARY_WITHIN: Duration = Duration::from_secs(10);

pub async fn upgrade(args: UpgradeArgs) -> Result<ExitCode> {
    let mut of_serve = args.serve;
    let wrong = |message: &str| Error::new(SqlState::INVALID_PARAMETER_VALUE, message);
    if of_serve.role.is_some() || of_serve.copy_from.is_some() || of_serve.ephemeral {
        return Err(wrong("an upgrade begins as a standby of the server that it replaces")
            .with_hint("Leave out --role, --copy-from and --ephemeral."));
    }
    of_serve.role = Some(PoolRole::Standby);
    // It was primary since, and was taken over from: the upgrade is long done.
    if std::env::var_os(LIFE_LEFT_VARIABLE).is_some() {
        of_serve.database.pool_name = std::env::var(NAME_VARIABLE).ok();
        return serve(of_serve, None).await;
    }
    let Some(pool) = of_serve.database.builder()?.build()?.pool else {
        return Err(wrong("an upgrade without downtime needs a pool that both servers attach to")
            .with_hint("Name it with --pool."));
    };
    let mut client = crate::sql::client_of(&args.url).await?;
    let before = Before::find(&mut client, &args.url).await?;
    let name = pool.name.unwrap_or_else(|| format!("tidepool-{}", std::process::id()));
    let name = before.free_name(&name);
    of_serve.database.pool_name = Some(name.clone());
    let upgrade = Upgrade {
        client,
        url: args.url,
        name,
        lag_max: args.max_lag,
        wait: Duration::from_secs(args.upgrade_wait_s.into()),
        before: before.name,
    };
    serve(of_serve, Some(upgrade)).await
}

/// The server that is to be replaced.
struct Before {
    name: String,
    /// Names of all hosts of its pool.
    names: Vec<String>,
}

impl Before {
    async fn find(client: &mut Client, url: &str) -> Result<Before> {
        let sql = "SELECT name, is_this_server::text AS is_it, pg_is_in_recovery()::text AS follows FROM tidepool.hosts \
                   WHERE state <> 'dead' AND name IS NOT NULL";
        let hosts = query(client, sql).await?;
        let all = || (0..hosts.rows.len()).filter_map(|row| Some((row, hosts.text(row, "name")?)));
        let names = all().map(|(_, name)| name.to_owned()).collect();
        let Some((row, name)) = all().find(|(row, _)| hosts.text(*row, "is_it") == Some("true")) else {
            let message = format!("the server at {url} has no pool that another one could attach to");
            return Err(Error::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, message)
                .with_hint("Keep its database in a pool: serve --pool … --role primary."));
        };
        if hosts.text(row, "follows") != Some("false") {
            let message = format!("the server at {url} is not primary");
            return Err(Error::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, message)
                .with_hint("Name the primary. A standby is replaced by stopping it and starting another one."));
        }
        Ok(Before { name: name.to_owned(), names })
    }

    /// The name itself, or the first of NAME.2, NAME.3, … that no host has.
    fn free_name(&self, name: &str) -> String {
        let candidates = (1..).map(|number| if number == 1 { name.to_owned() } else { format!("{name}.{number}") });
        let is_free = |candidate: &String| !self.names.contains(candidate);
        // There are fewer hosts than numbers.
        candidates.take(self.names.len() + 1).find(is_free).unwrap_or_else(|| name.to_owned())
    }
}

/// An upgrade that is under way: this server is ready to take over.
pub struct Upgrade {
    /// Of the server before.
    client: Client,
    url: String,
    /// This host's.
    name: String,
    lag_max: ByteSize,
    wait: Duration,
    before: String,
}

impl Upgrade {
    /// Has the server before hand over and end.
    pub async fn take_over(mut self, database: &Database) -> Result<()> {
        let sql = format!("CALL tidepool.switchover({}, '{}B', false, true)", literal(&self.name), self.lag_max.0);
        let end = Instant::now() + self.wait;
        loop {
            match query(&mut self.client, &sql).await {
                Ok(_) => break,
                // It may be behind, or another switch-over is under way.
                Err(error) if is_temporary(&error) && Instant::now() < end => {
                    tracing::debug!("{error}");
                    tokio::time::sleep(TRY_INTERVAL).await;
                }
                Err(error) if error.code() == SqlState::CONNECTION_FAILURE && becomes_primary(database).await => break,
                Err(error) if error.code() == SqlState::UNDEFINED_OBJECT => {
                    return Err(error
                        .with_hint(format!("The server at {} is of another pool, or of another database.", self.url)));
                }
                Err(error) => return Err(error),
            }
        }
        tracing::info!("this server is primary in the place of {}", self.before);
        let mut stdout = std::io::stdout();
        // Nobody may read it.
        let _ = writeln!(stdout, "tidepool has taken over from {}", self.before).and_then(|()| stdout.flush());
        Ok(())
    }
}

fn is_temporary(error: &Error) -> bool {
    [SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, SqlState::OBJECT_IN_USE].contains(&error.code())
}

/// The server before has ended: whether this one comes to be primary.
async fn becomes_primary(database: &Database) -> bool {
    let end = Instant::now() + PRIMARY_WITHIN;
    while database.role() != HostRole::Primary && Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    database.role() == HostRole::Primary
}
