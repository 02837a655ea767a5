//! A node as a process: where it listens, and what it takes to be let in.

use crate::{Arena, Node, Status};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tidepool_base::{Error, Result, SqlState};
use tidepool_device::remote::NodeAddress;
use tidepool_wire::transport::stream::Listener;
use tidepool_wire::{Server, ServerConfig, Token};

/// A node that listens. Its socket's file is removed on drop.
#[derive(Debug)]
pub struct Process {
    server: Arc<Server<Node>>,
    listener: Listener,
    address: NodeAddress,
    socket: Option<SocketFile>,
}

#[derive(Debug)]
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Ends a node from another thread.
#[derive(Clone, Debug)]
pub struct Stopper(Arc<Server<Node>>);

impl Stopper {
    /// Ends all connections and listening. Returns when the last connection is over.
    pub fn stop(&self) {
        self.0.stop();
    }

    pub fn status(&self) -> Status {
        self.0.service().status()
    }
}

impl Process {
    /// Listens at `address`. Without a token only peers on this machine can be let in: 22023 for any other address.
    pub fn bind(arena: Arena, address: &NodeAddress, token: Option<Token>, connections: usize) -> Result<Process> {
        let token = match token {
            Some(token) => token,
            None if address.is_local() => NodeAddress::local_token()?,
            None => {
                return Err(Error::new(
                    SqlState::INVALID_PARAMETER_VALUE,
                    format!("a memory node at {address} needs a token"),
                )
                .with_detail("Other machines can connect to it, and whoever connects reads and writes its memory.")
                .with_hint("Give it a file with at least 16 random bytes: --token-file FILE."));
            }
        };
        let config = ServerConfig { connections, ..ServerConfig::default() };
        let (listener, address, socket) = match address {
            NodeAddress::Tcp(host) => {
                let listener = Listener::tcp(host)?;
                let bound = listener.tcp_address().map_or_else(|| host.clone(), |address| address.to_string());
                (listener, NodeAddress::Tcp(bound), None)
            }
            NodeAddress::Unix(path) => {
                remove_left(path)?;
                let listener = Listener::unix(path)?;
                (listener, address.clone(), Some(SocketFile(path.clone())))
            }
        };
        Ok(Process { server: Server::new(Node::new(arena)?, token, config)?, listener, address, socket })
    }

    /// Where it listens: with the port that the system chose, if it was to be any.
    pub fn address(&self) -> &NodeAddress {
        &self.address
    }

    pub fn stopper(&self) -> Stopper {
        Stopper(self.server.clone())
    }

    /// Serves until it is stopped.
    pub fn run(self) -> Result<()> {
        self.server.listen(&self.listener)?;
        drop(self.socket);
        Ok(())
    }
}

/// Removes a socket that a node left which was killed. 55006 if a process listens there, 55000 if it is no socket.
fn remove_left(path: &Path) -> Result<()> {
    use std::os::unix::fs::FileTypeExt;
    let Ok(found) = std::fs::symlink_metadata(path) else { return Ok(()) };
    let shown = path.display();
    if !found.file_type().is_socket() {
        return Err(Error::new(SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE, format!("\"{shown}\" is no socket"))
            .with_hint("Name another path, or remove the file."));
    }
    if std::os::unix::net::UnixStream::connect(path).is_ok() {
        return Err(Error::new(SqlState::OBJECT_IN_USE, format!("another process listens at \"{shown}\"")));
    }
    std::fs::remove_file(path).map_err(|error| Error::io(format_args!("remove \"{shown}\""), &error))
}
