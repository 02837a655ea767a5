//! `tidepool pool`: memory that several processes attach to, made, looked at and given up.

use clap::{Args, Subcommand};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;
use tidepool_base::{ByteSize, Error, Result, SqlState};
use tidepool_device::{Location, Protection};
use tidepool_pool::check::check;
use tidepool_pool::dealt::{Machine, Slice};
use tidepool_pool::liveness::forget;
use tidepool_pool::member::{JoinOptions, Member};
use tidepool_pool::pool::{CreateOptions, Pool};
use tidepool_pool::show;
use tidepool_pool::slices::DealtPool;

#[derive(Args, Clone, Debug)]
pub struct PoolArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Clone, Debug, Subcommand)]
enum Action {
    /// Make a pool of files or DAX devices that hold nothing
    Create(CreateArgs),
    /// Show devices, databases, hosts and extents
    List(ListArgs),
    /// Add a device to a pool, which may be in use
    Add(AddArgs),
    /// Read the books of a pool through and say what is damaged or lost
    Check(CheckArgs),
    /// Show the last events of a pool
    Events(EventsArgs),
    /// Have so many readers of a database on this machine: starts or stops processes of `tidepool serve --role reader`
    Readers(crate::readers::ReadersArgs),
    /// Free what a host owned that is dead and that no other host could confirm to be. Of a pool that is dealt out, without HOST:
    /// say that the machine that holds a slice is dead as a whole, or was started anew since
    Forget(ForgetArgs),
    /// Of a pool that is dealt out, give up a slice that this machine holds, so that another machine can take it
    Release(ReleaseArgs),
    /// Let this release write what the release before cannot read
    Finalize(FinalizeArgs),
    /// Give up a pool with all that it holds
    Destroy(DestroyArgs),
}

#[derive(Args, Clone, Debug)]
struct PlaceArgs {
    /// The pool's first device: file:PATH or dax:PATH
    #[arg(value_name = "LOCATION")]
    location: Location,
}

/// Of a pool that is dealt out, for commands that look.
#[derive(Args, Clone, Copy, Debug)]
struct LookArgs {
    /// Of a pool that is dealt out: the slice to look at
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=16))]
    slice: Option<u8>,
}

/// Of a pool that is dealt out, for commands that change something.
#[derive(Args, Clone, Copy, Debug)]
struct MachineArgs {
    /// Of a pool that is dealt out: which of its hosts this machine is, from 1 on
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=16))]
    machine: Option<u8>,
    /// The slice that is meant, if it is not this machine's own
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=16), requires = "machine")]
    slice: Option<u8>,
}

impl MachineArgs {
    fn get(self) -> Option<(Machine, Slice)> {
        // People count from 1.
        self.machine.map(|machine| (Machine(machine - 1), Slice(self.slice.unwrap_or(machine) - 1)))
    }

    fn open(self, location: &Location) -> Result<Pool> {
        match self.get() {
            Some((machine, slice)) => Pool::open_slice(location, machine, slice),
            None => Pool::open(location),
        }
    }
}

impl LookArgs {
    fn open(self, location: &Location) -> Result<Pool> {
        match self.slice {
            Some(slice) => Pool::open_slice_to_read(location, Slice(slice - 1)),
            None => Pool::open_to_read(location),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Coherence {
    /// All hosts see each other's stores
    Full,
    /// They do not: the pool is dealt out to --hosts machines
    None,
}

#[derive(Args, Clone, Debug)]
struct ListArgs {
    #[command(flatten)]
    place: PlaceArgs,
    #[command(flatten)]
    of: LookArgs,
}

#[derive(Args, Clone, Debug)]
struct FinalizeArgs {
    #[command(flatten)]
    place: PlaceArgs,
    #[command(flatten)]
    of: MachineArgs,
}

#[derive(Args, Clone, Debug)]
struct ReleaseArgs {
    #[command(flatten)]
    place: PlaceArgs,
    /// Which of the pool's hosts this machine is, from 1 on
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=16))]
    machine: u8,
    /// The slice, if it is not this machine's own
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=16))]
    slice: Option<u8>,
}

#[derive(Args, Clone, Debug)]
struct CreateArgs {
    #[command(flatten)]
    place: PlaceArgs,
    /// Size of the first device [default: all of an existing file or of a DAX device]
    #[arg(long, value_name = "SIZE")]
    size: Option<ByteSize>,
    /// A further device: LOCATION or LOCATION,size=SIZE. May come several times
    #[arg(long = "device", value_name = "SPEC", value_parser = device)]
    devices: Vec<(Location, Option<u64>)>,
    /// Size of an extent, the unit that a host owns [default: so that there are up to 16,384; 2MB up to 32 GB]
    #[arg(long, value_name = "SIZE")]
    extent: Option<ByteSize>,
    /// What the pool may grow to with devices that are added later [default: four times its size]
    #[arg(long, value_name = "SIZE")]
    max_size: Option<ByteSize>,
    /// Text that tells this pool from others
    #[arg(long, default_value = "", hide_default_value = true)]
    label: String,
    /// A database to make in it, with what it may have of it: NAME or NAME,quota=SIZE. May come several times
    #[arg(long = "database", value_name = "SPEC", value_parser = database)]
    databases: Vec<(String, u64)>,
    /// Back all of it with memory now, so that no host waits for that later
    #[arg(long)]
    populate: bool,
    /// Make it even if the machine has less free memory than the pool takes: all of it, when it is made
    #[arg(long)]
    overcommit: bool,
    /// Whether the hosts' machines see each other's stores
    #[arg(long, value_enum, default_value = "full", hide_default_value = true)]
    coherence: Coherence,
    /// With --coherence none: how many machines the pool is dealt out to, each of which has a slice of it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=16))]
    hosts: Option<u8>,
}

#[derive(Args, Clone, Debug)]
struct AddArgs {
    #[command(flatten)]
    place: PlaceArgs,
    /// The device, which holds nothing: LOCATION or LOCATION,size=SIZE
    #[arg(value_name = "SPEC", value_parser = device)]
    device: (Location, Option<u64>),
}

#[derive(Args, Clone, Debug)]
struct CheckArgs {
    #[command(flatten)]
    place: PlaceArgs,
    #[command(flatten)]
    of: LookArgs,
    /// Compare what shared extents hold with their checksums, too
    #[arg(long)]
    deep: bool,
}

#[derive(Args, Clone, Debug)]
struct EventsArgs {
    #[command(flatten)]
    place: PlaceArgs,
    #[command(flatten)]
    of: LookArgs,
    /// How many, the last ones
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: usize,
}

#[derive(Args, Clone, Debug)]
struct ForgetArgs {
    #[command(flatten)]
    place: PlaceArgs,
    /// Its name, or its slot
    host: Option<String>,
    #[command(flatten)]
    of: MachineArgs,
    /// Also if its lock is held on this machine
    #[arg(long)]
    force: bool,
}

#[derive(Args, Clone, Debug)]
struct DestroyArgs {
    #[command(flatten)]
    place: PlaceArgs,
    /// Also if hosts are attached
    #[arg(long)]
    force: bool,
    /// Leave the files, which then hold no pool
    #[arg(long)]
    keep_files: bool,
}

fn device(text: &str) -> std::result::Result<(Location, Option<u64>), String> {
    let told = |error: Error| error.message().to_owned();
    let (location, size) = match text.rsplit_once(",size=") {
        Some((location, size)) => (location, Some(size.parse::<ByteSize>().map_err(told)?.0)),
        None => (text, None),
    };
    Ok((location.parse().map_err(told)?, size))
}

fn database(text: &str) -> std::result::Result<(String, u64), String> {
    match text.rsplit_once(",quota=") {
        Some((name, quota)) => {
            let quota = quota.parse::<ByteSize>().map_err(|error| error.message().to_owned())?;
            Ok((name.to_owned(), quota.0))
        }
        None => Ok((text.to_owned(), 0)),
    }
}

pub fn run(args: PoolArgs) -> Result<ExitCode> {
    match args.action {
        Action::Create(args) => create(args),
        Action::List(args) => list(&args),
        Action::Add(args) => {
            let pool = Pool::open(&args.place.location)?;
            pool.add_device(&args.device.0, args.device.1)?;
            print!("{}", show::list(&pool)?);
            Ok(ExitCode::SUCCESS)
        }
        Action::Check(args) => look(&args),
        Action::Events(args) => {
            print!("{}", show::events(&args.of.open(&args.place.location)?, args.limit)?);
            Ok(ExitCode::SUCCESS)
        }
        Action::Readers(args) => crate::readers::run(&args),
        Action::Forget(args) => forget_host(&args),
        Action::Release(args) => release(&args),
        Action::Finalize(args) => {
            let is_changed = args.of.open(&args.place.location)?.finalize()?;
            println!("{}", if is_changed { "finalized" } else { "nothing to do: the pool has this release's format" });
            Ok(ExitCode::SUCCESS)
        }
        Action::Destroy(args) => destroy(&args),
    }
}

fn invalid(message: &str) -> Error {
    Error::new(SqlState::INVALID_PARAMETER_VALUE, message)
}

fn list(args: &ListArgs) -> Result<ExitCode> {
    if args.of.slice.is_none()
        && let Some(dealt) = DealtPool::find(&args.place.location, Protection::Read)?
    {
        print!("{}", show::slices(&dealt)?);
        return Ok(ExitCode::SUCCESS);
    }
    print!("{}", show::list(&args.of.open(&args.place.location)?)?);
    Ok(ExitCode::SUCCESS)
}

fn release(args: &ReleaseArgs) -> Result<ExitCode> {
    let slice = args.slice.unwrap_or(args.machine);
    DealtPool::release(&args.place.location, Machine(args.machine - 1), Slice(slice - 1))?;
    println!("slice {slice} is given up: another machine can take it");
    Ok(ExitCode::SUCCESS)
}

fn create(args: CreateArgs) -> Result<ExitCode> {
    let mut devices = vec![(args.place.location, args.size.map(|size| size.0))];
    devices.extend(args.devices);
    let options = CreateOptions {
        devices,
        extent_bytes: args.extent.map(|size| size.0),
        bytes_max: args.max_size.map(|size| size.0),
        label: args.label,
        populates: args.populate,
        overcommits: args.overcommit,
    };
    let pool = match (args.coherence, args.hosts) {
        (Coherence::Full, None) => Arc::new(Pool::create(&options)?),
        (Coherence::Full, Some(_)) => return Err(invalid("--hosts needs --coherence none")),
        (Coherence::None, None) => return Err(invalid("--coherence none needs --hosts")),
        (Coherence::None, Some(_)) if !args.databases.is_empty() => {
            return Err(Error::unsupported("making databases in a pool that is dealt out")
                .with_hint("A server makes its database in its slice when it starts."));
        }
        (Coherence::None, Some(hosts)) => {
            print!("{}", show::slices(&DealtPool::create(&options, hosts)?)?);
            return Ok(ExitCode::SUCCESS);
        }
    };
    if !args.databases.is_empty() {
        let tool = Member::join(Arc::clone(&pool), &JoinOptions::tool("tidepool pool create"))?;
        for (name, quota) in &args.databases {
            tool.create_database(name, quota.div_ceil(pool.extent_bytes()))?;
        }
        tool.leave()?;
    }
    print!("{}", show::list(&pool)?);
    Ok(ExitCode::SUCCESS)
}

/// Of a pool that is dealt out all slices, unless one is named.
fn look(args: &CheckArgs) -> Result<ExitCode> {
    let location = &args.place.location;
    let started = Instant::now();
    let dealt = if args.of.slice.is_none() { DealtPool::find(location, Protection::Read)? } else { None };
    let Some(dealt) = dealt else { return look_at(&args.of.open(location)?, args.deep, started).map(ended) };
    let faults = dealt.faults()?;
    faults.iter().for_each(|fault| println!("fault: {fault}"));
    let mut is_clean = faults.is_empty();
    for view in dealt.slices()? {
        println!("slice {}", u32::from(view.slice.0) + 1);
        is_clean &= look_at(&Pool::open_slice_to_read(location, view.slice)?, args.deep, Instant::now())?;
    }
    Ok(ended(is_clean))
}

fn ended(is_clean: bool) -> ExitCode {
    if is_clean { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Whether it has no faults.
fn look_at(pool: &Pool, deep: bool, started: Instant) -> Result<bool> {
    let report = check(pool, deep)?;
    let seconds = started.elapsed().as_secs_f64();
    report.remarks.iter().for_each(|remark| println!("note: {remark}"));
    report.faults.iter().for_each(|fault| println!("fault: {fault}"));
    if report.quarantined > 0 {
        println!("note: {} extents are in quarantine: their hosts may be dead, and no host knows", report.quarantined);
    }
    let compared =
        if deep { format!(", {} of contents compared", ByteSize(report.compared_bytes)) } else { String::new() };
    println!("{} words read{compared}, {} faults, {seconds:.3} s", report.words, report.faults.len());
    Ok(report.is_clean())
}

fn forget_host(args: &ForgetArgs) -> Result<ExitCode> {
    let Some(name) = &args.host else {
        let Some((machine, slice)) = args.of.get() else {
            return Err(invalid("HOST is missing").with_hint("Of a pool that is dealt out: --machine and --slice."));
        };
        let dealt = DealtPool::open(&args.place.location, Protection::ReadWrite)?;
        match dealt.note_over(slice, machine, args.force)? {
            Some(of) => println!("host {} is forgotten: its slice can be taken", u32::from(of.0) + 1),
            None => println!("nothing to do: no machine holds the slice"),
        }
        return Ok(ExitCode::SUCCESS);
    };
    let pool = args.of.open(&args.place.location)?;
    let view = show::find_host(&pool, name)?;
    forget(&pool, view.host, args.force)?;
    println!("{} is forgotten: its private extents are free", view.host);
    Ok(ExitCode::SUCCESS)
}

fn destroy(args: &DestroyArgs) -> Result<ExitCode> {
    let locations = match DealtPool::find(&args.place.location, Protection::ReadWrite)? {
        Some(dealt) => vec![dealt.destroy(args.force)?],
        None => Pool::open(&args.place.location)?.destroy(args.force)?,
    };
    for location in &locations {
        if let (Location::File(path), false) = (location, args.keep_files) {
            std::fs::remove_file(path)
                .map_err(|error| Error::io(format_args!("remove \"{}\"", path.display()), &error))?;
        }
    }
    println!("destroyed: {} devices hold no pool any more", locations.len());
    Ok(ExitCode::SUCCESS)
}
