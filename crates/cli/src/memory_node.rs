//! `tidepool memory-node`: lends this machine's memory to databases on others.

use clap::Args;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tidepool_base::{ByteSize, Error, Result, SqlState};
use tidepool_device::Location;
use tidepool_device::remote::{NodeAddress, read_token};
use tidepool_node::{Arena, Process, Stopper};
use tokio::signal::unix::{SignalKind, signal};

/// How often the log says what a node has, if anything of it changed.
const STATUS_INTERVAL: Duration = Duration::from_secs(60);

#[derive(Args, Clone, Debug)]
pub struct MemoryNodeArgs {
    /// Where databases connect: an address of this machine, or a socket for its own processes
    #[arg(long, value_name = "HOST:PORT|unix:PATH", default_value = "127.0.0.1:7777")]
    listen: NodeAddress,
    /// The memory to lend: LOCATION,size=SIZE, as in anon:,size=8GB or numa:1,size=8GB
    #[arg(long, value_name = "SPEC")]
    memory: Lent,
    /// A file with at least 16 random bytes that databases must know. Required unless only this machine can connect
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Connections at one time. A tablespace takes twice as many as the database's machine has processors, and one
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u16).range(1..))]
    connections: u16,
}

/// What is lent.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Lent {
    location: Location,
    size_bytes: Option<u64>,
}

impl std::str::FromStr for Lent {
    type Err = Error;

    fn from_str(text: &str) -> Result<Lent> {
        let (mut location, mut size_bytes) = (Vec::new(), None);
        for part in text.split(',') {
            match part.trim().strip_prefix("size=") {
                Some(_) if size_bytes.is_some() => {
                    return Err(Error::new(SqlState::INVALID_PARAMETER_VALUE, "the size is given twice"));
                }
                Some(size) => size_bytes = Some(size.parse::<ByteSize>()?.0),
                None => location.push(part),
            }
        }
        Ok(Lent { location: location.join(",").parse()?, size_bytes })
    }
}

pub fn run(runtime: &tokio::runtime::Runtime, args: &MemoryNodeArgs) -> Result<ExitCode> {
    let token = args.token_file.as_deref().map(read_token).transpose()?;
    let arena = Arena::open(&args.memory.location, args.memory.size_bytes)?;
    let bytes = arena.bytes();
    let process = Process::bind(arena, &args.listen, token, args.connections.into())?;
    let stopper = process.stopper();
    // Before the line: whoever reads it may send a signal at once.
    let (mut terminate, mut interrupt) = runtime.block_on(async {
        let of = |kind| signal(kind).map_err(|error| Error::io("wait for signals", &error));
        Ok::<_, Error>((of(SignalKind::terminate())?, of(SignalKind::interrupt())?))
    })?;
    let address = process.address().clone();
    tracing::info!(memory = %ByteSize(bytes), listen = %address, "the memory node is ready");
    let mut out = std::io::stdout();
    // Whoever started it may not want to know.
    let _ = writeln!(out, "tidepool memory node is ready: {address}").and_then(|()| out.flush());
    let serving = std::thread::Builder::new()
        .name("accept".to_owned())
        .spawn(move || process.run())
        .map_err(|error| Error::io("start a thread", &error))?;
    runtime.block_on(async {
        let mut said = stopper.status();
        loop {
            tokio::select! {
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
                () = tokio::time::sleep(STATUS_INTERVAL) => {
                    let status = stopper.status();
                    if status != said {
                        tracing::info!("{status}");
                        said = status;
                    }
                }
            }
        }
    });
    end(&stopper);
    serving.join().map_err(|_| Error::internal("the memory node's thread panicked"))??;
    Ok(ExitCode::SUCCESS)
}

fn end(stopper: &Stopper) {
    tracing::info!("the memory node ends: {}", stopper.status());
    stopper.stop();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_a_location_and_a_size() {
        let lent: Lent = "numa:1, size=8GB".parse().unwrap();
        assert_eq!((lent.location, lent.size_bytes), (Location::Numa(1), Some(8 << 30)));
        assert_eq!("file:/a,b".parse::<Lent>().unwrap().location, Location::File("/a,b".into()));
        for wrong in ["size=8GB", "anon:,size=lots", "anon:,size=1GB,size=2GB", "tape:0,size=1GB"] {
            assert_eq!(wrong.parse::<Lent>().unwrap_err().code(), SqlState::INVALID_PARAMETER_VALUE, "{wrong}");
        }
    }
}
