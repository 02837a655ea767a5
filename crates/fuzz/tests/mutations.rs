//! Each fuzz target on mutations of its seeds: as many as the target says, always the same ones, or for
//! `TIDEPOOL_FUZZ_SECONDS`; `TIDEPOOL_STRESS_SEED` chooses others. An input that fails is kept in a file, which is named.

use rand::SeedableRng;
use rand::rngs::StdRng;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Panics of any thread: many of them are caught on their way, and no input may cause one.
static PANICS: AtomicU64 = AtomicU64::new(0);

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn count_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            PANICS.fetch_add(1, Ordering::SeqCst);
            before(panic);
        }));
    });
}

fn fuzz(name: &str) {
    count_panics();
    let target = tidepool_fuzz::target(name);
    let seeds = (target.seeds)();
    let seed = setting("TIDEPOOL_STRESS_SEED", 1);
    let seconds = Duration::from_secs(setting("TIDEPOOL_FUZZ_SECONDS", 0));
    let mut random = StdRng::seed_from_u64(seed);
    let mut inputs = 0_u64;
    let check = |input: &[u8], number: u64| {
        let before = PANICS.load(Ordering::SeqCst);
        let result = catch_unwind(AssertUnwindSafe(|| (target.run)(input)));
        if result.is_err() || PANICS.load(Ordering::SeqCst) != before {
            let path = std::env::temp_dir().join(format!("tidepool-fuzz-{name}-{seed}-{number}"));
            let kept = std::fs::write(&path, input).map(|()| path.display().to_string());
            panic!("{name}, seed {seed}, input {number}: {}", kept.unwrap_or_else(|error| error.to_string()));
        }
    };
    // Statements are seeds by the thousand, and tests of their own.
    for input in seeds.iter().take(500) {
        check(input, inputs);
        inputs += 1;
    }
    let (start, mutations) = (Instant::now(), target.mutations + inputs);
    while if seconds.is_zero() { inputs < mutations } else { start.elapsed() < seconds } {
        check(&tidepool_fuzz::mutate::mutated(&seeds, &mut random), inputs);
        inputs += 1;
    }
    println!("{name}: {inputs} inputs of seed {seed}");
}

// The tests of this file run as threads of one process and count panics together, so they take turns.
static ONE_AT_A_TIME: std::sync::Mutex<()> = std::sync::Mutex::new(());

macro_rules! targets {
    ($($name:ident),*) => {
        $(
            #[test]
            fn $name() {
                let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
                fuzz(stringify!($name));
            }
        )*

        #[test]
        fn every_target_is_run() {
            let run = [$(stringify!($name)),*];
            for target in tidepool_fuzz::TARGETS {
                assert!(run.contains(&target.name), "{} is not run", target.name);
            }
        }
    };
}

targets!(protocol, sql, copy, segments, keys, log, sessions, wire);
