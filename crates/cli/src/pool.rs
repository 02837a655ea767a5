//! `tidepool pool`: memory that several processes attach to, made, looked at and given up.

use clap::{Args, Subcommand};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;
use tidepool_base::{ByteSize, Error, Result};
use tidepool_device::Location;
use tidepool_pool::check::check;
use tidepool_pool::liveness::forget;
use tidepool_pool::member::{JoinOptions, Member};
use tidepool_pool::pool::{CreateOptions, Pool};
use tidepool_pool::show;

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
    List(PlaceArgs),
    /// Add a device to a pool, which may be in use
    Add(AddArgs),
    /// Read the books of a pool through and say what is damaged or lost
    Check(CheckArgs),
    /// Show the last events of a pool
    Events(EventsArgs),
    /// Free what a host owned that is dead and that no other host could confirm to be
    Forget(ForgetArgs),
    /// Let this release write what the release before cannot read
    Finalize(PlaceArgs),
    /// Give up a pool with all that it holds
    Destroy(DestroyArgs),
}

#[derive(Args, Clone, Debug)]
struct PlaceArgs {
    /// The pool's first device: file:PATH or dax:PATH
    #[arg(value_name = "LOCATION")]
    location: Location,
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
    /// Compare what shared extents hold with their checksums, too
    #[arg(long)]
    deep: bool,
}

#[derive(Args, Clone, Debug)]
struct EventsArgs {
    #[command(flatten)]
    place: PlaceArgs,
    /// How many, the last ones
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: usize,
}

#[derive(Args, Clone, Debug)]
struct ForgetArgs {
    #[command(flatten)]
    place: PlaceArgs,
    /// Its name, or its slot
    host: String,
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
        Action::List(args) => {
            print!("{}", show::list(&Pool::open_to_read(&args.location)?)?);
            Ok(ExitCode::SUCCESS)
        }
        Action::Add(args) => {
            let pool = Pool::open(&args.place.location)?;
            pool.add_device(&args.device.0, args.device.1)?;
            print!("{}", show::list(&pool)?);
            Ok(ExitCode::SUCCESS)
        }
        Action::Check(args) => look(&args),
        Action::Events(args) => {
            print!("{}", show::events(&Pool::open_to_read(&args.place.location)?, args.limit)?);
            Ok(ExitCode::SUCCESS)
        }
        Action::Forget(args) => forget_host(&args),
        Action::Finalize(args) => {
            let is_changed = Pool::open(&args.location)?.finalize()?;
            println!("{}", if is_changed { "finalized" } else { "nothing to do: the pool has this release's format" });
            Ok(ExitCode::SUCCESS)
        }
        Action::Destroy(args) => destroy(&args),
    }
}

fn create(args: CreateArgs) -> Result<ExitCode> {
    let mut devices = vec![(args.place.location, args.size.map(|size| size.0))];
    devices.extend(args.devices);
    let pool = Pool::create(&CreateOptions {
        devices,
        extent_bytes: args.extent.map(|size| size.0),
        bytes_max: args.max_size.map(|size| size.0),
        label: args.label,
        populates: args.populate,
    })?;
    let pool = Arc::new(pool);
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

fn look(args: &CheckArgs) -> Result<ExitCode> {
    let pool = Pool::open_to_read(&args.place.location)?;
    let started = Instant::now();
    let report = check(&pool, args.deep)?;
    let seconds = started.elapsed().as_secs_f64();
    report.remarks.iter().for_each(|remark| println!("note: {remark}"));
    report.faults.iter().for_each(|fault| println!("fault: {fault}"));
    if report.quarantined > 0 {
        println!("note: {} extents are in quarantine: their hosts may be dead, and no host knows", report.quarantined);
    }
    let compared =
        if args.deep { format!(", {} of contents compared", ByteSize(report.compared_bytes)) } else { String::new() };
    println!("{} words read{compared}, {} faults, {seconds:.3} s", report.words, report.faults.len());
    Ok(if report.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn forget_host(args: &ForgetArgs) -> Result<ExitCode> {
    let pool = Pool::open(&args.place.location)?;
    let view = show::find_host(&pool, &args.host)?;
    forget(&pool, view.host, args.force)?;
    println!("{} is forgotten: its private extents are free", view.host);
    Ok(ExitCode::SUCCESS)
}

fn destroy(args: &DestroyArgs) -> Result<ExitCode> {
    let locations = Pool::open(&args.place.location)?.destroy(args.force)?;
    for location in &locations {
        if let (Location::File(path), false) = (location, args.keep_files) {
            std::fs::remove_file(path)
                .map_err(|error| Error::io(format_args!("remove \"{}\"", path.display()), &error))?;
        }
    }
    println!("destroyed: {} devices hold no pool any more", locations.len());
    Ok(ExitCode::SUCCESS)
}
