# One command per job. CI calls the same recipes' commands.

# Build everything, and the demo's data, and show the four placements.
demo *ARGS:
    cargo run --release -- demo {{ARGS}}

# Every test: units, the SQL corpus under each placement, the wire.
test:
    cargo test --release --workspace

# Queries with known answers on several sessions while tablespaces grow, shrink, gain and lose locations and tables move.
soak SECONDS="60" SEED="1":
    TIDEPOOL_SOAK_SECONDS={{SECONDS}} TIDEPOOL_SOAK_SEED={{SEED}} \
        cargo test --release -p tidepool --test suite -- elastic::soak --nocapture

# The SQL corpus alone.
slt:
    cargo test --release -p tidepool --test suite -- slt

# Devices, tablespaces and SQL on Linux's own CXL, DAX and NUMA drivers, in emulated guests (tests/guests/README.md).
test-devices *SCENARIOS:
    tests/guests/run {{SCENARIOS}}

lint:
    cargo fmt --all --check
    cargo clippy --release --workspace --all-targets -- -D warnings

# The pointer code under Miri, over a heap-backed device.
miri:
    MIRIFLAGS=-Zmiri-disable-isolation cargo +nightly miri test -p tidepool-base -p tidepool-simd -p tidepool-tablespace -p tidepool-txn
    MIRIFLAGS=-Zmiri-disable-isolation cargo +nightly miri test -p tidepool-pool -p tidepool-pod --lib -- mapped::
    MIRIFLAGS=-Zmiri-disable-isolation cargo +nightly miri test -p tidepool-index --lib
    MIRIFLAGS=-Zmiri-disable-isolation cargo +nightly miri test -p tidepool-log --lib
    MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-permissive-provenance" cargo +nightly miri test -p tidepool-table --lib -- bits:: packing:: uuid:: rows::
    MIRIFLAGS="-Zmiri-disable-isolation -Zmiri-permissive-provenance" cargo +nightly miri test -p tidepool-engine --lib -- text:: rows:: join:: aggregate:: sort:: vector:: dictionary::

# The unit tests of the crates with pointer code under AddressSanitizer. The allocator of the product, jemalloc, is left out,
# so that every block has red zones; freed blocks are kept apart. SIGBUS is left to the product's own handler, which tests count on.
asan *FILTER:
    RUSTFLAGS="-Zsanitizer=address -Cforce-frame-pointers=yes" ASAN_OPTIONS=detect_leaks=0:handle_sigbus=0 \
        cargo +nightly test --release --target x86_64-unknown-linux-gnu --target-dir target/asan \
        -p tidepool-device -p tidepool-pool -p tidepool-index -p tidepool-table -p tidepool-engine -p tidepool-heap --lib -- {{FILTER}}

# The same under ThreadSanitizer, which needs the standard library built with it (`rustup component add rust-src`).
tsan *FILTER:
    RUSTFLAGS=-Zsanitizer=thread TSAN_OPTIONS="halt_on_error=1" \
        cargo +nightly test --release -Zbuild-std --target x86_64-unknown-linux-gnu --target-dir target/tsan \
        -p tidepool-device -p tidepool-index -p tidepool-table -p tidepool-engine -p tidepool-heap --lib -- {{FILTER}}

# One fuzz target (protocol, sql, copy, segments, keys, log, sessions, wire) guided by coverage, under AddressSanitizer. Needs `cargo install cargo-fuzz`.
fuzz TARGET SECONDS="3600":
    cargo run --release -p tidepool-fuzz --example seeds -- {{TARGET}} fuzz/corpus/{{TARGET}}
    cargo +nightly fuzz run {{TARGET}} -- -max_total_time={{SECONDS}} -max_len=65536 -timeout=60 -rss_limit_mb=4096

# What takes too long for every change: models, Miri, sanitizers, fuzz targets, kills, histories, agreement and random queries, each with a
# fresh seed. Ends with what failed, how to repeat it and what to keep.
nightly SECONDS="600":
    tests/nightly {{SECONDS}}

# Every interleaving of the query heap's leases, and many of the page table's, the pool's words', the transactions', the log's (group
# commit, a pool's log with its writer, follower and successor, waiters for a position), an index's and the row store's. Apart, as the flag would rebuild everything.
loom:
    RUSTFLAGS="--cfg loom" cargo test --release -p tidepool-heap --lib --target-dir target/loom lease
    RUSTFLAGS="--cfg loom" cargo test --release -p tidepool-device --lib --target-dir target/loom interleavings
    RUSTFLAGS="--cfg loom" cargo test --release -p tidepool-pool --lib --target-dir target/loom interleavings
    RUSTFLAGS="--cfg loom" cargo test --release -p tidepool-txn --lib --target-dir target/loom model
    RUSTFLAGS="--cfg loom" cargo test --release -p tidepool-log --lib --target-dir target/loom interleavings
    RUSTFLAGS="--cfg loom" cargo test --release -p tidepool-index --lib --target-dir target/loom model
    RUSTFLAGS="--cfg loom" cargo test --release -p tidepool-table --lib --target-dir target/loom model

# Every interleaving of hosts over the words of a pool, which die, sleep and wake between any two accesses; then with each fence and
# each swap removed, and with what broke earlier designs put back: how each is found.
pool-model:
    TIDEPOOL_MODEL=large cargo test --release -p tidepool-pool --lib model -- --nocapture

# Hosts of a pod whose caches evict, fetch early and write back late, sleep and die at any access, for so long; then with each flush,
# fence, order and swap left out: how each is found.
pod-model SECONDS="10" SEED="1":
    TIDEPOOL_STRESS_SECONDS={{SECONDS}} TIDEPOOL_STRESS_SEED={{SEED}} TIDEPOOL_MODEL=large \
        cargo test --release -p tidepool-pod --lib model -- --nocapture

# Processes over one pool, killed at random moments and at every crash point, and stopped, also while slices of a pool that is dealt
# out change hands; and a simulated pool whose hosts pause, die
# and wake between any two accesses; both also with a log in the pool.
pool-kills SECONDS="60" SEED="1":
    TIDEPOOL_STRESS_SECONDS={{SECONDS}} TIDEPOOL_STRESS_SEED={{SEED}} \
        cargo test --release -p tidepool-pool --test processes --test slices -- --nocapture
    TIDEPOOL_STRESS_OPERATIONS=1000000 TIDEPOOL_STRESS_SEED={{SEED}} TIDEPOOL_STRESS_FAULTS=10000 \
        cargo test --release -p tidepool-pool --lib -- simulated each_bit --nocapture
    TIDEPOOL_STRESS_SECONDS={{SECONDS}} TIDEPOOL_STRESS_SEED={{SEED}} \
        cargo test --release -p tidepool-log --lib --test pool -- nothing_acknowledged dies_at_any_point --nocapture

# Processes of a database that lives in a pool: primaries killed and stopped at random and ended at crash points while they write,
# standbys that take over, for so long.
failover-kills SECONDS="60" SEED="1":
    TIDEPOOL_STRESS_SECONDS={{SECONDS}} TIDEPOOL_STRESS_SEED={{SEED}} \
        cargo test --release -p tidepool-database --lib -- roles::processes --nocapture

# Whole databases on one pool in one process, one step at a time by a seed: they pause, wake and die at any crash point, for so long.
simulated-hosts SECONDS="60" SEED="1":
    TIDEPOOL_STRESS_SECONDS={{SECONDS}} TIDEPOOL_STRESS_SEED={{SEED}} \
        cargo test --release -p tidepool-database --lib -- roles::simulated --nocapture

# A pool's own operations between processes, its books, and hosts that are killed.
pool-figures *ARGS:
    cargo run --release -- bench pool {{ARGS}}

# TPC-H by a server wholly in a pool beside one that is near, and servers that are ended: docs/results/idle-compute.md.
idle-compute *ARGS:
    cargo run --release -- bench idle-compute {{ARGS}}

# Databases that have their peaks one after the other in one pool.
shared-peaks *ARGS:
    cargo run --release -- bench shared-peaks {{ARGS}}

# What leasing, handing over, zeroing, publishing and checking cost, in a pool of GIGABYTES that is made at PATH and removed.
pool-speed PATH="/dev/shm/tidepool-pool-speed" GIGABYTES="1":
    cargo run --release -p tidepool-pool --example pool_speed -- {{PATH}} {{GIGABYTES}}

# What an index costs, in millions of entries: `just index-speed 10`, `just index-speed 1 cxl-asic integer`.
index-speed *ARGS:
    cargo run --release -p tidepool-index --example index_speed -- {{ARGS}}

# Statements on many threads over tablespaces that are too small for them, the same with all of them paged, and threads over
# paged memory with a cache that is too small; debug assertions on.
stress SECONDS="60" SEED="1":
    CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true TIDEPOOL_STRESS_SECONDS={{SECONDS}} TIDEPOOL_STRESS_SEED={{SEED}} \
        cargo test --release -p tidepool-heap --test stress --target-dir target/stress -- --nocapture
    CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true TIDEPOOL_STRESS_SECONDS={{SECONDS}} TIDEPOOL_STRESS_SEED={{SEED}} \
        TIDEPOOL_TEST_LOCATION=paged:1MB:anon: \
        cargo test --release -p tidepool-heap --test stress --target-dir target/stress -- --nocapture
    CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true TIDEPOOL_STRESS_SECONDS={{SECONDS}} TIDEPOOL_STRESS_SEED={{SEED}} \
        cargo test --release -p tidepool-device --lib --target-dir target/stress stress -- --nocapture

# Histories of a log on a simulated disk that loses power, fails and fills up; then of processes that are killed.
stress-log SECONDS="60" SEED="1":
    TIDEPOOL_STRESS_SECONDS={{SECONDS}} TIDEPOOL_STRESS_SEED={{SEED}} \
        cargo test --release -p tidepool-log --test simulation --test kill -- --nocapture

# Servers killed at random moments and at named crash points under a mixed workload, and the same in one process on a simulated
# disk that tears, forgets, fails and fills up: all that was acknowledged is there, nothing is half there.
kills SECONDS="60" SEED="1":
    TIDEPOOL_STRESS_SECONDS={{SECONDS}} TIDEPOOL_STRESS_SEED={{SEED}} \
        cargo test --release --workspace --test suite -- kills --nocapture
    TIDEPOOL_STRESS_SECONDS={{SECONDS}} TIDEPOOL_STRESS_SEED={{SEED}} \
        cargo test --release --workspace --lib -- log_tests transfer_tests --nocapture

# Concurrent random transactions over the wire at each isolation level, and what they saw searched for what it forbids.
histories SECONDS="60" SEED="1":
    TIDEPOOL_STRESS_SECONDS={{SECONDS}} TIDEPOOL_STRESS_SEED={{SEED}} \
        cargo test --release --workspace --test suite -- histories --nocapture

# One random history over tables of every merge policy in every placement: each way to their rows gives the same answer.
agreement SECONDS="60" SEED="1":
    TIDEPOOL_STRESS_SECONDS={{SECONDS}} TIDEPOOL_STRESS_SEED={{SEED}} \
        cargo test --release --workspace --test suite -- agreement --nocapture

# What the log costs: appending, and commits on files in FOLDER and in memory, waiting for the device and not.
log-speed FOLDER="/tmp" SECONDS="3" DEVICE="":
    cargo run --release -p tidepool-log --example log_speed -- {{FOLDER}} {{SECONDS}} "{{DEVICE}}"

# A client and a memory node over a network that loses, doubles, damages, delays and cuts, by seeds.
stress-wire SECONDS="60" SEED="1":
    TIDEPOOL_STRESS_SECONDS={{SECONDS}} TIDEPOOL_STRESS_SEED={{SEED}} \
        cargo test --release -p tidepool-wire --test simulation -- --nocapture

# What a read of 64 kB costs over each transport to a memory node, beside a bare loop over the same kind of connection.
wire-speed ROUNDS="20":
    cargo run --release -p tidepool-wire --example wire_speed -- {{ROUNDS}}

# Histories of the row store against a model, and chaos on several threads while ranges are merged; debug assertions on.
stress-rows SECONDS="60" SEED="1":
    CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS=true TIDEPOOL_STRESS_SECONDS={{SECONDS}} TIDEPOOL_STRESS_SEED={{SEED}} \
        cargo test --release -p tidepool-table --lib --target-dir target/stress rows::tests::threads::stress -- --nocapture

# What a point read and a transaction of one row cost, without index, log or SQL, on one thread and on THREADS.
bench-rows ROWS="1000000" THREADS="2" *PROFILE:
    cargo run --release -p tidepool-table --example rows -- {{ROWS}} {{THREADS}} {{PROFILE}}

# A virtual environment with the peers, pinned, from PyPI.
peers:
    python3 -m venv target/peers
    target/peers/bin/pip install --quiet --requirement bench/requirements.txt

# Every analytics figure beside DuckDB and Hyper in one report: docs/results/comparison.md.
compare *ARGS: peers
    target/peers/bin/python bench/compare.py {{ARGS}}

# TPC-H beside DuckDB, Hyper and plain DataFusion in one run.
compare-tpch *ARGS: peers
    target/peers/bin/python bench/compare_tpch.py {{ARGS}}

# Small statements of ordinary applications beside PostgreSQL, by three protocols: docs/results/latency.md.
latency *ARGS: peers
    target/peers/bin/python bench/latency.py {{ARGS}}

# Every TPC-DS answer beside DuckDB's.
compare-tpcds *ARGS: peers
    target/peers/bin/python bench/compare_tpcds.py {{ARGS}}

# Random queries over random tables, by the engine, by DataFusion's operators and by DuckDB: about ten seconds a schema.
random-queries SECONDS="600" SEED="1": peers
    cargo build --release
    target/peers/bin/python bench/random_queries.py --schemas $(( ({{SECONDS}} + 9) / 10 )) --seed {{SEED}}
