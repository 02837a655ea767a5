//! The network between this machine and the remote node.

use crate::links::LinkClock;
use crate::{PAGE_BYTES, Profile};
use std::sync::Arc;

/// A page takes what the cost model says of one sequential read of 4 KiB: a latency, its requester's own, and a transfer
/// over the link, which all share. A page that is written back takes the transfer alone: nobody waits for it to arrive,
/// but the frame is free, and the link, only when it is gone.
///
/// Plain numbers, computed beforehand: a signal handler asks.
#[derive(Debug)]
pub(crate) struct Link {
    read_latency_ns: u64,
    read_ns: u64,
    write_ns: u64,
    /// One page each way.
    exchange_ns: u64,
    /// Of the clock that `charge` is given. Shared by all that name the same link.
    busy_until: Arc<LinkClock>,
}

impl Link {
    pub fn new(profile: &Profile) -> Link {
        let bytes = (PAGE_BYTES as u64).next_multiple_of(u64::from(profile.granularity_bytes)) as f64;
        let ns = |read: f64, write: f64| profile.transfer_ns(read, write).round() as u64;
        Link {
            read_latency_ns: profile.read_latency_ns.round() as u64,
            read_ns: ns(bytes, 0.0),
            write_ns: ns(0.0, bytes),
            exchange_ns: ns(bytes, bytes),
            busy_until: profile
                .link
                .as_deref()
                .map_or_else(LinkClock::own, |name| LinkClock::named(&format!("paging {name}"))),
        }
    }

    /// Sends pages back and fetches one or none, from `now_ns` on. Returns after how many nanoseconds that is done.
    pub fn charge(&self, now_ns: u64, fetched: bool, written_back: u32) -> u64 {
        let written = u64::from(written_back);
        let transfer_ns = match (fetched, written) {
            (true, 0) => self.read_ns,
            (true, written) => self.exchange_ns + (written - 1) * self.write_ns,
            (false, written) => written * self.write_ns,
        };
        self.busy_until.take(now_ns, transfer_ns) - now_ns
            + transfer_ns
            + if fetched { self.read_latency_ns } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Access, CostModel, LOCAL_DRAM};

    #[test]
    fn a_page_takes_what_the_cost_model_says() {
        for name in ["rdma-56g", "rdma-56g-paging", "infiniswap", "optane"] {
            let profile = Profile::preset(name).unwrap();
            let model = CostModel::new(profile.clone(), Profile::preset(LOCAL_DRAM).unwrap(), 1 << 20);
            let expected = model.device_ns(&Access::read_sequential(PAGE_BYTES as u64));
            let actual = Link::new(&profile).charge(1000, true, 0) as f64;
            assert!((actual - expected).abs() <= 1.0, "{name}: {actual} {expected}");
        }
    }

    #[test]
    fn the_link_is_shared_and_latencies_are_not() {
        // 4096 bytes at 7 GB/s: 585 ns; both ways at 14 GB/s together: the same.
        let link = Link::new(&Profile::preset("rdma-56g-paging").unwrap());
        assert_eq!((link.read_ns, link.write_ns, link.exchange_ns), (585, 585, 585));
        let alone = 4415 + 585;
        assert_eq!(link.charge(1_000_000, true, 0), alone);
        assert_eq!(link.charge(1_000_000, true, 0), alone + 585, "two at once");
        assert_eq!(link.charge(1_000_000, false, 1), 3 * 585, "a page sent back waits for the link and no answer");
        assert_eq!(link.charge(1_000_000, true, 1), alone + 3 * 585);
        assert_eq!(link.charge(2_000_000, true, 3), alone + 2 * 585);
    }

    #[test]
    fn links_of_one_name_are_one() {
        let profile = Profile::preset("rdma-56g-paging").unwrap();
        let on = |name: &str| Link::new(&Profile { link: Some(name.to_owned()), ..profile.clone() });
        // Other runs of this test, at once or before, have links of their own.
        let [a, b] = ["a", "b"].map(|name| format!("{name} of test {}", std::process::id()));
        let (first, second, other) = (on(&a), on(&a), on(&b));
        first.charge(1_000_000, false, 100);
        assert_eq!(second.charge(1_000_000, false, 1), 101 * 585);
        assert_eq!(other.charge(1_000_000, false, 1), 585);
    }
}
