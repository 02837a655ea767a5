//! A primary passes its listener and its clients' sockets to a standby, and is killed: clients that come queue until the
//! standby accepts them, and those that were there learn of it at once.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tidepool_base::{Result, SqlState};
use tidepool_device::Location;
use tidepool_pool::control::{Arrival, ControlConnection, ControlListener};
use tidepool_pool::member::{JoinOptions, Member};
use tidepool_pool::pool::{CreateOptions, Pool};

const POOL_VARIABLE: &str = "TIDEPOOL_TEST_POOL";
const LONG: Duration = Duration::from_secs(60);

fn location(path: &Path) -> Location {
    Location::File(path.to_owned())
}

fn open(path: &Path) -> Arc<Pool> {
    Arc::new(Pool::open(&location(path)).unwrap())
}

fn create(path: &Path) {
    let options = CreateOptions {
        devices: vec![(location(path), Some(16 << 21))],
        extent_bytes: None,
        bytes_max: None,
        label: String::new(),
        populates: false,
        overcommits: false,
    };
    drop(Pool::create(&options).unwrap());
}

fn join(pool: &Arc<Pool>, name: &str, control_socket: &Path) -> Member {
    let options = JoinOptions { control_socket: control_socket.display().to_string(), ..JoinOptions::tool(name) };
    Member::join(Arc::clone(pool), &options).unwrap()
}

fn socket_of(pool: &Path) -> PathBuf {
    pool.with_extension("sock")
}

/// Not a test: the primary that the others start and kill.
#[test]
fn child() {
    let Some(path) = std::env::var_os(POOL_VARIABLE).map(PathBuf::from) else { return };
    let pool = open(&path);
    let member = join(&pool, "primary", &socket_of(&path));
    let control = ControlListener::bind(&socket_of(&path), &pool, member.host()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    println!("\nlistens at {}", listener.local_addr().unwrap());
    let standby = control.accept(&pool, LONG).unwrap().unwrap();
    standby.send(b"listener", &[listener.as_fd()]).unwrap();
    let mut clients = Vec::new();
    for client in listener.incoming() {
        let mut client = client.unwrap();
        standby.send(b"client", &[client.as_fd()]).unwrap();
        client.write_all(b"served by the primary\n").unwrap();
        clients.push(client);
    }
}

struct Primary(Child);

impl Drop for Primary {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(path: &Path) -> (Primary, String) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["child", "--exact", "--nocapture", "--test-threads=1"]).env(POOL_VARIABLE, path);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let primary = Primary(child);
    let address = lines.map_while(|line| line.ok()).find_map(|line| Some(line.strip_prefix("listens at ")?.to_owned()));
    (primary, address.expect("the primary has ended"))
}

fn message(connection: &ControlConnection) -> (Vec<u8>, std::os::fd::OwnedFd) {
    match connection.receive(LONG).unwrap() {
        Arrival::Message { bytes, mut descriptors } => (bytes, descriptors.pop().unwrap()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn listeners_and_clients_outlive_the_primary_that_passed_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pool");
    create(&path);
    let (mut primary, address) = start(&path);
    let pool = open(&path);
    let standby = join(&pool, "standby", Path::new(""));
    let host = pool.hosts().unwrap().into_iter().find(|view| view.host != standby.host()).unwrap().host;
    let control = ControlConnection::connect(&pool, standby.host(), host).unwrap();
    assert_eq!(control.peer(), host);
    let (bytes, listener) = message(&control);
    assert_eq!(bytes, b"listener");
    let mut client = TcpStream::connect(&address).unwrap();
    let (bytes, of_client) = message(&control);
    assert_eq!(bytes, b"client");
    let mut line = String::new();
    let mut reader = BufReader::new(client.try_clone().unwrap());
    reader.read_line(&mut line).unwrap();
    assert_eq!(line, "served by the primary\n");
    assert!(matches!(control.receive(Duration::ZERO).unwrap(), Arrival::Nothing));

    primary.0.kill().unwrap();
    assert!(matches!(control.receive(LONG).unwrap(), Arrival::End));
    assert_eq!(control.send(b"x", &[]).unwrap_err().code(), SqlState::CONNECTION_FAILURE);
    // The client's connection is still there, as the standby has it, until that ends it.
    TcpStream::from(of_client).shutdown(std::net::Shutdown::Both).unwrap();
    assert_eq!(reader.read(&mut [0]).unwrap(), 0);
    assert!(client.write_all(b"x").and_then(|()| client.write_all(b"x")).is_err() || client.peer_addr().is_err());
    // A new one is not refused: it waits until the standby accepts it.
    let mut next = TcpStream::connect(&address).unwrap();
    next.write_all(b"hello").unwrap();
    let (mut accepted, _) = TcpListener::from(listener).accept().unwrap();
    let mut greeting = [0; 5];
    accepted.read_exact(&mut greeting).unwrap();
    assert_eq!(&greeting, b"hello");
}

#[test]
fn only_hosts_of_the_pool_that_live_are_let_in() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let (path, other_path) = (folder.path().join("pool"), folder.path().join("other"));
    create(&path);
    create(&other_path);
    let (pool, other_pool) = (open(&path), open(&other_path));
    let socket = socket_of(&path);
    let member = join(&pool, "primary", &socket);
    let control = ControlListener::bind(&socket, &pool, member.host())?;
    // A second one does not take its place.
    let error = ControlListener::bind(&socket, &pool, member.host()).unwrap_err();
    assert_eq!(error.code(), SqlState::OBJECT_IN_USE);
    let (standby, stranger) = (join(&pool, "standby", Path::new("")), join(&other_pool, "stranger", &socket));
    std::thread::scope(|scope| {
        let accepted = scope.spawn(|| control.accept(&pool, LONG));
        // Of another pool; one that has left; and one that lives.
        assert!(ControlConnection::connect(&other_pool, stranger.host(), stranger.host()).is_err());
        let gone = join(&pool, "gone", Path::new(""));
        let host = gone.host();
        gone.leave()?;
        assert!(ControlConnection::connect(&pool, host, member.host()).is_err());
        let connection = ControlConnection::connect(&pool, standby.host(), member.host())?;
        let accepted = accepted.join().unwrap()?.unwrap();
        assert_eq!((connection.peer(), accepted.peer()), (member.host(), standby.host()));
        assert_eq!(connection.send(&[], &[]).unwrap_err().code(), SqlState::PROGRAM_LIMIT_EXCEEDED);
        Ok::<_, tidepool_base::Error>(())
    })?;
    drop(control);
    assert!(!socket.exists());
    // What a process that was killed leaves there is in nobody's way.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    assert!(socket.exists());
    ControlListener::bind(&socket, &pool, member.host()).map(drop)
}
