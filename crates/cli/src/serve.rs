//! `tidepool serve`.

use crate::config::DatabaseArgs;
use crate::upgrade::Upgrade;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tidepool_base::{Error, Result};
use tidepool_database::{Database, HostRole, LIFE_LEFT_VARIABLE, OnFenced, PoolRole};
use tidepool_planner::Planner;
use tidepool_server::{Doorway, Server, Service, ServiceOptions, ShutdownHandle};
use tokio::signal::unix::{SignalKind, signal};

#[derive(Clone, Debug, clap::Args)]
pub struct ServeArgs {
    #[command(flatten)]
    pub database: DatabaseArgs,
    /// Keep the database in the pool, and begin as primary, standby, whichever is missing (auto), as a reader, or as a copy of another
    /// pool's database [default: none]
    #[arg(long, value_name = "ROLE")]
    pub role: Option<PoolRole>,
    /// With --role copy: the data folder of the primary that is copied, its second tier, as it can be read here
    #[arg(long, value_name = "DIR")]
    pub copy_from: Option<PathBuf>,
    /// Keep nothing: no data folder, and no role. Of a pool, all that the server has is free when it ends, however it ends
    #[arg(long, conflicts_with_all = ["role", "data"])]
    pub ephemeral: bool,
    /// The tablespace at pool: that holds the server's own memory, too [default: none]
    #[arg(long, value_name = "NAME")]
    process_tablespace: Option<String>,
    /// Where clients connect [default: 127.0.0.1:5477]
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,
    /// Folder of the socket for clients on this machine, `psql -h DIR -p 5477` [default: none]
    #[arg(long, value_name = "DIR")]
    socket_directory: Option<PathBuf>,
    /// Address of the Prometheus endpoint, /metrics [default: off]
    #[arg(long, value_name = "HOST:PORT")]
    metrics: Option<String>,
    /// Certificate for TLS, PEM
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_certificate: Option<PathBuf>,
    /// Private key of the certificate, PEM
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    tls_key: Option<PathBuf>,
    /// Refuse clients that connect over TCP without TLS
    #[arg(long)]
    tls_required: bool,
    /// Clients that can be connected at once [default: 500]
    #[arg(long, value_name = "N")]
    connections_max: Option<usize>,
    /// Log statements that take this long
    #[arg(long, value_name = "MS", env = "TIDEPOOL_SLOW_STATEMENT_MS")]
    slow_statement_ms: Option<u64>,
    /// How long running statements have to end when the server is stopped
    #[arg(long, value_name = "S", default_value_t = 30, env = "TIDEPOOL_SHUTDOWN_GRACE_S")]
    shutdown_grace_s: u64,
}

/// Serves until it is told to stop. With `upgrade`, it takes over from the server that is primary, and stops where it cannot.
pub async fn serve(args: ServeArgs, upgrade: Option<Upgrade>) -> Result<ExitCode> {
    // A process that began anew has its name from the path of the program that it was.
    if std::env::var_os(LIFE_LEFT_VARIABLE).is_some() {
        let _ = std::fs::write("/proc/self/comm", "tidepool");
    }
    let descriptors_max = raise_descriptor_limit();
    let database_args = DatabaseArgs { role: args.role, copy_from: args.copy_from, ..args.database };
    let mut builder = database_args.builder()?;
    if args.ephemeral {
        builder = builder.ephemeral();
    }
    if args.process_tablespace.is_some() {
        builder = builder.process_tablespace(args.process_tablespace);
    }
    if let Some(listen) = args.listen {
        builder = builder.listen(listen);
    }
    if let Some(folder) = args.socket_directory {
        builder = builder.socket_directory(Some(folder));
    }
    if let Some(metrics) = args.metrics {
        builder = builder.metrics_listen(Some(metrics));
    }
    if let (Some(certificate), Some(key)) = (args.tls_certificate, args.tls_key) {
        builder = builder.tls(certificate, key);
    }
    if args.tls_required {
        builder = builder.tls_required();
    }
    if let Some(count) = args.connections_max {
        builder = builder.connections_max(count);
    }
    let config = builder.build()?;
    let settings = config.server.clone();
    // A standby may find its primary there.
    let may_wait =
        config.pool.as_ref().is_some_and(|pool| matches!(pool.role, Some(PoolRole::Standby | PoolRole::Auto)));
    let doorway = Doorway::open(&settings.listen, settings.metrics_listen.as_deref(), may_wait).await?;
    let database = tokio::task::spawn_blocking(move || Database::open(config))
        .await
        .map_err(|error| Error::internal(format!("opening the database failed: {error}")))??;
    end_when_fenced(&database);
    let of_reload = Arc::downgrade(&database);
    database.set_reload(move || {
        let config = database_args.builder()?.build()?;
        let (Some(database), Some(pool)) = (of_reload.upgrade(), config.pool) else { return Ok(()) };
        database.set_synchronous_standby_names(&pool.synchronous_standby_names())
    });
    reload_on_signal(&database)?;
    let options = ServiceOptions {
        connections_max: settings.connections_max,
        superuser_reserved: settings.superuser_reserved_connections,
        descriptors_max,
        tls_required: settings.tls_required,
        slow_statement: args.slow_statement_ms.map(Duration::from_millis),
        shutdown_grace: Duration::from_secs(args.shutdown_grace_s),
        ..ServiceOptions::default()
    };
    let mut service = Service::new(Planner::new(database.clone())?, options);
    if let (Some(certificate), Some(key)) = (&settings.tls_certificate, &settings.tls_key) {
        service = service.with_tls(certificate, key)?;
    }
    let service = Arc::new(service);
    let server = Server::within(service, doorway, settings.socket_directory.as_deref()).await?;
    if let Some(address) = server.metrics_address()? {
        tracing::info!("metrics at http://{address}/metrics");
    }
    // Before the line: whoever reads it may send a signal at once.
    stop_on_signal(server.shutdown_handle())?;
    let mut stdout = std::io::stdout();
    let _ = writeln!(stdout, "tidepool is ready: {}", server.url()?).and_then(|()| stdout.flush());
    let handle = server.shutdown_handle();
    let upgrading = upgrade.map(|upgrade| {
        let database = database.clone();
        tokio::spawn(async move {
            let upgraded = upgrade.take_over(&database).await;
            if upgraded.is_err() {
                handle.stop();
            }
            upgraded
        })
    });
    server.run().await;
    tracing::info!("writing the data folder");
    IS_CLOSING.store(true, Ordering::Release);
    close(database).await?;
    tracing::info!("stopped");
    match upgrading {
        Some(upgrading) if upgrading.is_finished() => {
            upgrading.await.map_err(|error| Error::internal(format!("the upgrade failed: {error}")))??;
        }
        // It was stopped meanwhile.
        Some(upgrading) => upgrading.abort(),
        None => {}
    }
    Ok(ExitCode::SUCCESS)
}

/// How long statements have to tell their clients that the database was taken over.
const FENCED_GRACE: Duration = Duration::from_millis(200);

/// Ends the process, or begins it anew as a standby, once another host has taken the database over; and ends it where it cannot
/// follow any more.
fn end_when_fenced(database: &Arc<Database>) {
    let on_fenced = database.on_fenced().unwrap_or_default();
    let again = if database.is_reader() { "reader" } else { "standby" };
    let of_watch = Arc::downgrade(database);
    database.watch_role(Box::new(move |role| {
        let ends = matches!(role, HostRole::Fenced | HostRole::Failed);
        if !ends || IS_CLOSING.load(Ordering::Acquire) {
            return;
        }
        let database = of_watch.clone();
        let spawned = std::thread::Builder::new().name("fenced".to_owned()).spawn(move || {
            // A signal that this process takes now would be lost to the one that comes after it.
            end_on_signal();
            std::thread::sleep(FENCED_GRACE);
            if role == HostRole::Fenced && IS_STOPPING.load(Ordering::Acquire) {
                tracing::info!("stopped");
                std::process::exit(0);
            }
            let (mut left, mut name) = (None, None);
            if let Some(database) = database.upgrade() {
                database.announce_end();
                if role == HostRole::Fenced && database.ends_after_switchover() {
                    tracing::info!("another server has taken over, as it was to: this one ends");
                    std::process::exit(0);
                }
                left = database.pool().map(|host| host.life_left());
                name = database.config().pool.as_ref().and_then(|pool| pool.name.clone());
            }
            if role == HostRole::Fenced && on_fenced == OnFenced::Rejoin {
                tracing::warn!("this process begins anew, as a {again}");
                tracing::error!(
                    "could not begin anew: {}",
                    begin_anew(again, name.as_deref(), left.as_deref().unwrap_or_default())
                );
            }
            std::process::exit(1);
        });
        if spawned.is_err() {
            std::process::exit(1);
        }
    }));
}

/// The name of this host of the pool. A flag goes before it.
pub const NAME_VARIABLE: &str = "TIDEPOOL_POOL_NAME";

/// A signal asked the process to stop.
static IS_STOPPING: AtomicBool = AtomicBool::new(false);

/// From now on a signal that asks the process to stop ends it.
fn end_on_signal() {
    for signal in [libc::SIGTERM, libc::SIGINT] {
        // SAFETY: a plain call; the default action runs no code of this program.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}

/// Set before the server hands its term in.
static IS_CLOSING: AtomicBool = AtomicBool::new(false);

/// The program of this process. The file that it was started from may be gone, or another release's by now.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// Puts the same program in the place of this one, in another role. All that it holds of the pool is released by that, which it is
/// told. Returns only if it cannot.
fn begin_anew(role: &str, name: Option<&str>, life_left: &str) -> std::io::Error {
    let mut arguments: Vec<_> = std::env::args_os().collect();
    let mut index = 0;
    while index < arguments.len() {
        if arguments[index] == "--role" && index + 1 < arguments.len() {
            arguments[index + 1] = role.into();
        } else if arguments[index].as_encoded_bytes().starts_with(b"--role=") {
            arguments[index] = format!("--role={role}").into();
        }
        index += 1;
    }
    let mut command = std::process::Command::new(OWN_PROGRAM);
    if !arguments.is_empty() {
        command.arg0(arguments.remove(0));
    }
    command.envs(name.map(|name| (NAME_VARIABLE, name)));
    command.args(arguments).env("TIDEPOOL_POOL_ROLE", role).env(LIFE_LEFT_VARIABLE, life_left).exec()
}

/// Writes what the data folder does not have yet.
pub async fn close(database: Arc<Database>) -> Result<()> {
    tokio::task::spawn_blocking(move || database.close())
        .await
        .map_err(|error| Error::internal(format!("closing the database failed: {error}")))?
}

/// SIGHUP has the configuration read again.
fn reload_on_signal(database: &Arc<Database>) -> Result<()> {
    let mut hangups = signal(SignalKind::hangup()).map_err(|error| Error::io("listen for signals", &error))?;
    let of_task = Arc::downgrade(database);
    tokio::spawn(async move {
        while hangups.recv().await.is_some() {
            let Some(database) = of_task.upgrade() else { return };
            tracing::info!("asked to read the configuration again");
            let _ = tokio::task::spawn_blocking(move || database.reload_configuration()).await;
        }
    });
    Ok(())
}

/// The first SIGTERM or SIGINT stops gracefully, the second at once.
fn stop_on_signal(handle: ShutdownHandle) -> Result<()> {
    let listen = |kind| signal(kind).map_err(|error| Error::io("listen for signals", &error));
    let (mut terminate, mut interrupt) = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
    tokio::spawn(async move {
        let mut next = async || {
            tokio::select! {
                _ = terminate.recv() => (),
                _ = interrupt.recv() => (),
            }
        };
        next().await;
        IS_STOPPING.store(true, Ordering::Release);
        tracing::info!("asked to stop; a second signal stops at once");
        handle.stop();
        next().await;
        tracing::warn!("stopping at once");
        std::process::exit(1);
    });
    Ok(())
}

/// Many clients need many descriptors, and the soft limit is often 1,024. Tells how many there are, if that is known.
fn raise_descriptor_limit() -> Option<usize> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid rlimit that both calls only use while they run.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) != 0 {
            return None;
        }
        let soft = limit.rlim_cur;
        limit.rlim_cur = limit.rlim_max;
        if soft < limit.rlim_max && libc::setrlimit(libc::RLIMIT_NOFILE, &limit) != 0 {
            limit.rlim_cur = soft;
        }
    }
    usize::try_from(limit.rlim_cur).ok()
}
