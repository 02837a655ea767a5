//! `tidepool upgrade`: servers that replace one another, which clients do not notice.

use crate::cli::{Serving, text, tidepool};
use crate::failover::{Cluster, connect, free_address, one, pool, until};
use crate::server::PATIENCE;
use crate::sessions::{Rich, add, create_tables, rejoining, switch_over};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Where servers of a cluster are, which have the same settings as each other.
struct Settings {
    cluster: Cluster,
    config: String,
    listen: String,
    metrics: String,
}

impl Settings {
    fn new() -> Settings {
        let cluster = Cluster::new();
        let config = rejoining(&cluster, "100s");
        Settings { cluster, config, listen: free_address(), metrics: free_address() }
    }

    fn add_to(&self, command: &mut Command) {
        command.args(["--near", "128MB", "--far", "pool:", "--pool", &pool(self.cluster.folder.path())]);
        command.args(["--config", &self.config, "--listen", &self.listen, "--metrics", &self.metrics, "--name", "h"]);
        command.arg("--socket-directory").arg(self.cluster.folder.path());
    }

    fn first(&self) -> Serving {
        let mut command = tidepool();
        command.args(["serve", "--role", "primary"]);
        self.add_to(&mut command);
        Serving::start(command).unwrap_or_else(|log| panic!("the first does not start: {log}"))
    }

    /// A server in the place of that at `url`.
    fn next(&self, url: &str, crash_point: Option<&str>) -> Serving {
        let mut command = tidepool();
        command.args(["upgrade", url]);
        self.add_to(&mut command);
        command.envs(crash_point.map(|point| ("TIDEPOOL_CRASH_POINT", point)));
        Serving::start(command).unwrap_or_else(|log| panic!("the next does not start: {log}"))
    }
}

/// Waits until a server has ended by itself: what it said.
fn ended(mut server: Serving) -> (bool, String) {
    let begun = Instant::now();
    while !server.has_ended() {
        assert!(begun.elapsed() < PATIENCE, "it does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
    server.wait()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_replace_one_another_and_clients_notice_nothing() {
    let settings = Settings::new();
    let mut server = settings.first();
    let url = server.url.clone();
    let client = connect(&url).await;
    create_tables(&client).await;
    let rich = Rich::new(&url, 1, None).await;
    let state = rich.state().await;
    let stopped = Arc::new(AtomicBool::new(false));
    let mut adding = Vec::new();
    for account in [1, 2] {
        adding.push(tokio::spawn(add(connect(&url).await, account, stopped.clone())));
    }
    for round in 0..6 {
        let next = settings.next(&url, None);
        let (is_success, log) = tokio::task::spawn_blocking(move || ended(server)).await.unwrap();
        assert!(is_success && !log.contains("ERROR"), "{log}");
        server = next;
        let name = if round % 2 == 0 { "h.2" } else { "h" };
        assert_eq!(one(&client, "SELECT name FROM tidepool.hosts WHERE is_this_server").await, name);
        rich.check(round, &state).await;
        rich.check_cancel(&url).await;
        // Who comes now comes to the same place.
        assert_eq!(one(&connect(&url).await, "SELECT name FROM tidepool.hosts WHERE is_this_server").await, name);
        let local = format!("host={} port={} user=tidepool", settings.cluster.folder.path().display(), port(&url));
        let (local, connection) = tokio_postgres::connect(&local, tokio_postgres::NoTls)
            .await
            .unwrap_or_else(|error| panic!("{round}: {error}, {log}"));
        tokio::spawn(connection);
        assert_eq!(one(&local, "SELECT name FROM tidepool.hosts WHERE is_this_server").await, name);
        let begun = Instant::now();
        while std::net::TcpStream::connect(&settings.metrics).is_err() {
            assert!(begun.elapsed() < PATIENCE, "it has no metrics");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    stopped.store(true, Ordering::Relaxed);
    let mut all = 0;
    for adding in adding {
        let (added, longest, error) = adding.await.unwrap();
        assert!(error.is_none() && added > 0, "{added} {error:?}");
        println!("{added} transactions, the longest {longest:?}");
        all += added;
    }
    assert_eq!(one(&client, "SELECT sum(balance) FROM accounts").await, all.to_string());
    server.signal(libc::SIGTERM);
    assert!(server.wait().0);
}

fn port(url: &str) -> &str {
    url.split(':').next_back().unwrap().split('/').next().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upgrade_that_fails_leaves_the_server_as_it_was() {
    let settings = Settings::new();
    let server = settings.first();
    let url = server.url.clone();
    let client = connect(&url).await;
    client.batch_execute("SET app.here = 'yes'").await.unwrap();
    // The next one dies when it has the clients and is not primary yet.
    let next = settings.next(&url, Some("switchover.held"));
    let (is_success, _) = tokio::task::spawn_blocking(move || ended(next)).await.unwrap();
    assert!(!is_success);
    assert_eq!(one(&client, "SHOW app.here").await, "yes");
    client.batch_execute("CREATE TABLE goes_on (id int)").await.unwrap();
    // Of another pool.
    let other = Cluster::new();
    let refused = |arguments: &[&str], hint: &str| {
        let mut command = tidepool();
        command.arg("upgrade").args(arguments);
        let log = Serving::refused(command);
        assert!(log.contains(hint), "{log}");
    };
    refused(&[&url, "--role", "primary"], "Leave out --role");
    refused(&[&url, "--near", "64MB"], "Name it with --pool");
    let alone = crate::cli::serve(&other.folder.path().join("data"), &[]);
    refused(&[&alone.url, "--near", "64MB", "--pool", &pool(other.folder.path())], "has no pool");
    let mut command = tidepool();
    command.args(["upgrade", &url, "--near", "64MB", "--pool", &pool(other.folder.path()), "--listen", "127.0.0.1:0"]);
    command.args(["--far", "pool:", "--name", "elsewhere"]);
    let lost = command.output().unwrap();
    let said = text(&lost.stderr);
    assert!(!lost.status.success() && said.contains("is of another pool"), "{said}");
    assert_eq!(one(&client, "SHOW app.here").await, "yes");
    // And now it is replaced.
    let next = settings.next(&url, None);
    assert!(tokio::task::spawn_blocking(move || ended(server)).await.unwrap().0);
    assert_eq!(one(&client, "SHOW app.here").await, "yes");
    drop(next);
}

/// A program that began as an upgrade, and whose file is gone, begins anew as a standby all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_replaced_another_follows_when_it_is_taken_over_from() {
    let settings = Settings::new();
    let server = settings.first();
    let url = server.url.clone();
    create_tables(&connect(&url).await).await;
    let program = settings.cluster.folder.path().join("next-release");
    std::fs::copy(tidepool().get_program(), &program).unwrap();
    let mut command = Command::new(&program);
    command.stdin(std::process::Stdio::null()).args(["upgrade", &url]);
    settings.add_to(&mut command);
    let next = Serving::start(command).unwrap();
    assert!(tokio::task::spawn_blocking(move || ended(server)).await.unwrap().0);
    std::fs::remove_file(&program).unwrap();
    let mut command = tidepool();
    command.args(["serve", "--near", "128MB", "--far", "pool:", "--pool", &pool(settings.cluster.folder.path())]);
    command.args(["--config", &settings.config, "--role", "standby", "--name", "other", "--listen", "127.0.0.1:0"]);
    let other = Serving::start(command).unwrap();
    let client = connect(&url).await;
    until(&client, "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'", "1").await;
    switch_over(&url, "other").await;
    let client = connect(&other.url).await;
    until(&client, "SELECT count(*) FROM tidepool.hosts WHERE state = 'following' AND name = 'h.2'", "1").await;
    let shown = std::fs::read_to_string(Path::new("/proc").join(next.pid().to_string()).join("comm")).unwrap();
    assert_eq!(shown, "tidepool\n");
}
