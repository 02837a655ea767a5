//! What a page of a memory node costs: by a fault, by a hint in extents of 64 kB, and by a bare request. The node is a
//! thread of this process, so that figures are of two processors of one machine.
//!
//!     cargo run --release -p tidepool-node --example page_speed

use std::time::{Duration, Instant};
use tidepool_base::Result;
use tidepool_device::paged::{AtNode, Paged};
use tidepool_device::remote::{Absence, NodeAddress, NodeSettings, Policy, Tenant};
use tidepool_device::{Location, PAGE_BYTES};
use tidepool_node::{Arena, Process};
use tidepool_wire::{
    Allocation, Connection, DirectConnection, Epoch, Extent, Identity, Limits, Offer, Place, Timeouts,
};

const BYTES: usize = 64 << 20;
const CACHE_BYTES: u64 = 4 << 20;
const READS: usize = 5_000;
const LONG: Duration = Duration::from_secs(30);

fn main() -> Result<()> {
    let path = std::env::temp_dir().join(format!("tidepool-page-speed-{}", std::process::id()));
    println!("{:<8} {:<34} {:>10} {:>10}", "socket", "what", "p50", "p99");
    for address in [NodeAddress::Unix(path), NodeAddress::Tcp("127.0.0.1:0".to_owned())] {
        let arena = Arena::open(&Location::Anon, Some(4 * BYTES as u64))?;
        let process = Process::bind(arena, &address, None, 200)?;
        let (address, stopper) = (process.address().clone(), process.stopper());
        let node = std::thread::spawn(move || process.run());
        measure(&address)?;
        stopper.stop();
        // It ends without an error when it is stopped.
        let _ = node.join();
    }
    Ok(())
}

fn measure(address: &NodeAddress) -> Result<()> {
    let socket = match address {
        NodeAddress::Unix(_) => "unix",
        NodeAddress::Tcp(_) => "TCP",
    };
    let show = |what: &str, mut singles: Vec<u64>| {
        singles.sort_unstable();
        let at = |percent: usize| singles[(singles.len() - 1) * percent / 100] as f64 / 1000.0;
        println!("{socket:<8} {what:<34} {:>7.1} us {:>7.1} us", at(50), at(99));
    };
    let offer = |lane| Offer {
        tablespace: Identity([7; 16]),
        epoch: Epoch(1),
        client: Identity([8; 16]),
        lane,
        incarnation: 1,
        limits: Limits::default(),
        bare_data: true,
    };
    let token = NodeAddress::local_token()?;
    let control = Connection::open(address.connect(LONG)?, &offer(0), &token, Timeouts::default())?;
    let place = control.register(&[Allocation { bytes: BYTES as u64, purpose: 0 }])?[0];
    let mut direct = DirectConnection::open(address.connect(LONG)?, &offer(1), &token, LONG)?;
    for (what, bytes) in [("a request, 4 kB", PAGE_BYTES), ("a request, 64 kB", 16 * PAGE_BYTES)] {
        let mut buffer = vec![0; bytes];
        let mut singles = Vec::new();
        for read in 0..READS {
            let offset = (read * 7919 % (BYTES / bytes) * bytes) as u64;
            let start = Instant::now();
            let extent = Extent { place: Place(place.0 + offset), bytes: bytes as u32 };
            direct.read_into(&[extent], &mut buffer, LONG).map_err(|fault| fault.error())?;
            singles.push(start.elapsed().as_nanos() as u64);
        }
        show(what, singles);
    }
    for policy in [Policy::Os, Policy::Managed] {
        let node = NodeSettings { address: address.clone(), token: None, policy };
        let at = AtNode { node: &node, tenant: &Tenant::passing()?, absence: Absence::Refused, protected: 0 };
        let paged = Paged::open_at_node(at, BYTES as u64, BYTES as u64, CACHE_BYTES)?;
        let word = |page: usize| paged.base().as_ptr().wrapping_add(page * PAGE_BYTES).cast::<u64>();
        let pages = BYTES / PAGE_BYTES;
        for page in 0..pages {
            // SAFETY: a word of the window, which nobody else knows of.
            unsafe { word(page).write_volatile(page as u64) };
        }
        // What is dirty in the cache leaves first.
        for page in 0..pages {
            // SAFETY: as above.
            unsafe { word(page).read_volatile() };
        }
        let read = |page: usize| {
            // SAFETY: as above.
            let found = unsafe { word(page).read_volatile() };
            assert_eq!(found, page as u64);
        };
        let mut singles = Vec::new();
        for number in 0..READS {
            let page = number * 7919 % pages;
            let start = Instant::now();
            read(page);
            singles.push(start.elapsed().as_nanos() as u64);
        }
        show(&format!("a page by a fault, policy={}", policy.name()), singles);
        if policy == Policy::Managed {
            let mut singles = Vec::new();
            for extent in (0..pages).step_by(16) {
                let start = Instant::now();
                paged.bring(extent * PAGE_BYTES..(extent + 16) * PAGE_BYTES);
                (extent..extent + 16).for_each(read);
                singles.push(start.elapsed().as_nanos() as u64 / 16);
            }
            show("a page of an extent by a hint", singles);
        }
    }
    Ok(())
}
