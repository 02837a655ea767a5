#!/bin/sh
# The tests of one guest: those of the crates that map devices, then SQL through the program. Each prints
#   TEST group ok|FAILED SECONDS name
# with its output before. Run by the guest's init as /payload/run.sh.
cd "$(dirname "$0")" || exit 1
. ./scenario            # scenario, far, second, rows, size, groups (all if empty)
failed=0
clock() { cut -d' ' -f1 /proc/uptime; }
program() { lib/ld-linux-x86-64.so.2 --library-path lib "$@"; }

wanted() { case " ${groups:-$1} " in *" $1 "*) return 0 ;; *) return 1 ;; esac; }

# test_case GROUP NAME COMMAND…
test_case() {
    wanted "$1" || return 0
    group=$1 name=$2; shift 2
    start=$(clock)
    if "$@" > /tmp/out 2>&1; then verdict=ok; else verdict=FAILED; failed=1; fi
    seconds=$(awk "BEGIN { printf \"%.1f\", $(clock) - $start }")
    sed 's/^/    | /' /tmp/out
    echo "TEST $group $verdict $seconds $name"
}

# rust_tests CRATE ARGUMENTS…: every test of a binary, one verdict for each.
rust_tests() {
    wanted "$1" || return 0
    crate=$1; shift
    start=$(clock)
    program "./$crate" --test-threads=2 "$@" > /tmp/out 2>&1; rc=$?
    seconds=$(awk "BEGIN { printf \"%.1f\", $(clock) - $start }")
    cat /tmp/out
    passed=$(sed -n 's/^test result: .* \([0-9]*\) passed.*/\1/p' /tmp/out)
    if [ $rc = 0 ] && [ "${passed:-0}" -gt 0 ]; then verdict=ok; else verdict=FAILED; failed=1; fi
    echo "TEST $crate $verdict $seconds ${passed:-0} tests $*"
}

# is EXPECTED COMMAND…: its output's last line.
is() {
    wanted=$1; shift
    got=$("$@" 2>/tmp/err | tail -1)
    [ "$got" = "$wanted" ] || { echo "expected: $wanted"; echo "got:      $got"; cat /tmp/err; return 1; }
}

# refused TEXT COMMAND…: fails, saying TEXT.
refused() {
    text=$1; shift
    if "$@" > /tmp/err 2>&1; then echo "succeeded, and should have said: $text"; cat /tmp/err; return 1; fi
    grep -qF "$text" /tmp/err || { echo "expected: $text"; cat /tmp/err; return 1; }
}

sql_far() {
    place=$1; shift
    program ./tidepool sql --data "$data" --near 128MB --far "$place" --threads 2 --format csv "$@"
}
sql() { sql_far "$far,size=$size,huge_pages=$huge" "$@"; }
data=/tmp/data
huge=on; case $scenario in cxl-*) huge=off ;; esac
held="SELECT bytes > 0 FROM tidepool.memory WHERE tablespace = 'far' AND purpose ="
answer="SELECT count(*), sum(id), min(note), max(note), count(DISTINCT k) FROM t"
expected="$rows,$((rows * (rows + 1) / 2)),note 0,note 99,10"
path=${far#*:}

create_and_load() {
    is "$expected" sql -c "CREATE TABLE t (id bigint, k int, note text) TABLESPACE far" \
        -c "INSERT INTO t SELECT i, i % 10, 'note ' || (i % 100) FROM generate_series(1, $rows) AS g(i)" -c "$answer" &&
        is t sql -c "$held 'main'"
}
move_the_table() {
    sql -c "ALTER TABLE t SET TABLESPACE near" || return
    is f sql -c "$held 'main'" && is "$expected" sql -c "$answer" || return
    sql -c "ALTER TABLE t SET TABLESPACE far" || return
    is t sql -c "$held 'main'" && is "$expected" sql -c "$answer"
}
move_a_column() {
    is f sql -c "ALTER TABLE t SET TABLESPACE near" -c "$held 'main'" || return
    sql -c "ALTER TABLE t ALTER COLUMN note SET TABLESPACE far" || return
    is t sql -c "$held 'main'" && is "$expected" sql -c "$answer"
}
heap_there() {
    is t sql -c "SET temp_tablespaces = 'far'" \
        -c "SELECT k, note, count(*), sum(id) FROM t GROUP BY k, note ORDER BY sum(id), note LIMIT 3" \
        -c "SELECT sum(c) FROM (SELECT id, count(*) AS c FROM t GROUP BY id)" \
        -c "SELECT bytes_peak > 100000 FROM tidepool.memory WHERE tablespace = 'far' AND purpose = 'heap'" &&
        is "$rows" sql -c "SET temp_tablespaces = 'far'" -c "SELECT sum(c) FROM (SELECT id, count(*) AS c FROM t GROUP BY id)"
}
reopened() {
    epoch() { sql --log-level debug -c "SELECT 1" 2>&1 | sed -n 's/.*, epoch \([0-9]*\),.*/\1/p' | tail -1; }
    first=$(epoch); second_epoch=$(epoch)
    echo "epochs $first, $second_epoch"
    [ "$second_epoch" = $((first + 1)) ] && is "$expected" sql -c "$answer"
}
in_use() {
    # Not through a function, whose process would be a shell's.
    lib/ld-linux-x86-64.so.2 --library-path lib ./tidepool serve --data "$data" --near 128MB --far "$far,size=$size" \
        --threads 2 > /tmp/serve 2>&1 &
    server=$!
    url=postgresql://tidepool@127.0.0.1:5477/tidepool
    for _ in $(seq 100); do program ./tidepool sql $url -c "SELECT 1" > /tmp/ready 2>&1 && break; sleep 0.3; done
    "$@"; rc=$?
    kill $server; wait $server 2> /tmp/ended
    [ $rc = 0 ] || cat /tmp/serve /tmp/ready
    return $rc
}
second_process() {
    refused "is in use" program ./tidepool sql --data /tmp/data2 --far "$far,size=$size" -c "SELECT 1"
}
pages_on_the_node() {
    node=${far#numa:}
    is "$expected" program ./tidepool sql $url --format csv -c "$answer" || return
    # A line of a mapping that this tablespace bound: its policy, and its pages by node.
    grep "bind:$node" "/proc/$server/numa_maps" | tee /tmp/maps
    grep -q "N$node=[1-9]" /tmp/maps && ! sed "s/N$node=[0-9]*//g" /tmp/maps | grep -q ' N[0-9]*='
}
# `sf` among a mapping's flags is MAP_SYNC: flushed lines are durable. A file system on virtio-pmem has to refuse it.
synchronous() {
    awk -v path="$path" '/^[0-9a-f]+-/ { ours = $NF == path } ours && /^VmFlags/' "/proc/$server/smaps" | tee /tmp/flags
    case $scenario in
        virtio-pmem) [ -s /tmp/flags ] && ! grep -q ' sf' /tmp/flags ;;
        *) grep -q ' sf' /tmp/flags ;;
    esac
}
# What a server leaves that is killed: main is found in memory by the next one, and so is the log, which then has what no
# checkpoint had. Without the device the log is missed.
found_again() {
    data=/tmp/data5
    printf '[log]\ntablespace = "far"\nsize = "4MB"\nsegment_size = "256kB"\n' > /tmp/log.toml
    export TIDEPOOL_CONFIG=/tmp/log.toml
    url=postgresql://tidepool@127.0.0.1:5477/tidepool
    started() {
        lib/ld-linux-x86-64.so.2 --library-path lib ./tidepool serve --data "$data" --near 128MB --far "$far,size=$size,huge_pages=$huge" \
            --threads 2 > /tmp/serve 2>&1 &
        server=$!
        for _ in $(seq 100); do program ./tidepool sql $url -c "SELECT 1" > /tmp/ready 2>&1 && return; sleep 0.3; done
        cat /tmp/serve /tmp/ready; return 1
    }
    killed() { kill -9 $server; wait $server 2> /tmp/ended; }
    started && program ./tidepool sql $url -c "CREATE TABLE t (id bigint, k int, note text) TABLESPACE far" \
        -c "INSERT INTO t SELECT i, i % 10, 'note ' || (i % 100) FROM generate_series(2, $rows) AS g(i)" \
        -c "CHECKPOINT" -c "INSERT INTO t VALUES (1, 1, 'note 1')" || return
    killed
    program ./tidepool check --data "$data" --near 128MB --far "$far,size=$size,huge_pages=$huge" || return
    started || return
    is "$expected" program ./tidepool sql $url --format csv -c "$answer"; rc=$?
    killed
    cat /tmp/serve
    [ $rc = 0 ] && grep -q "were found in memory, 0 B of main read from files" /tmp/serve &&
        grep -q "the log had 1 transactions" /tmp/serve &&
        refused "the log is missing" sql_far "anon:,size=$size" -c "SELECT 1" && is "$expected" sql -c "$answer"
    rc=$?
    unset TIDEPOOL_CONFIG
    return $rc
}
# warned TEXT: a start goes on with memory in the device's place, and all rows, and says TEXT.
warned() {
    is "$expected" sql -c "$answer" && grep -F "memory takes its place" /tmp/err | grep -F "$1" && return
    echo "expected a warning: $1"; cat /tmp/err; return 1
}
# Content that is not Tidepool's, and a superblock of another version, are named and left as they are.
foreign_content() {
    version1=$(poke "$path" 8) version2=$(poke "$path" 2056)
    [ "$version1" = 1 ] && [ "$version2" = 1 ] || { echo "versions $version1, $version2"; return 1; }
    one=$(printf '\001') two=$(printf '\002')
    poke "$path" 8 "$two" && poke "$path" 2056 "$two" || return
    warned "has format version 2" || return
    [ "$(poke "$path" 8)" = 2 ] || { echo "the other version's superblock was changed"; return 1; }
    poke "$path" 8 "$one" && poke "$path" 2056 "$one" && is "$expected" sql -c "$answer" || return
    poke "$path" 0 MYTHESIS && poke "$path" 2048 "ONE COPY" || return
    warned "holds something that is not Tidepool's" || return
    [ "$(poke "$path" 0)$(poke "$path" 2048)" = 7779 ] || { echo "foreign content was changed"; return 1; }
    poke "$path" 0 TIDEPOOL && poke "$path" 2048 TIDEPOOL && is "$expected" sql -c "$answer"
}
dropped() {
    is f sql -c "DROP TABLE t" -c "$held 'main'" && refused "\"t\"" sql -c "SELECT count(*) FROM t"
}
# The configuration of the far-memory study: columns in a file on the device, query heap on the node, at once.
two_places() {
    data=/tmp/data3
    is "$expected" sql -c "CREATE TABLESPACE heap LOCATION '$second' WITH (size = '128MB')" \
        -c "SET temp_tablespaces = 'heap'" -c "CREATE TABLE t (id bigint, k int, note text) TABLESPACE far" \
        -c "INSERT INTO t SELECT i, i % 10, 'note ' || (i % 100) FROM generate_series(1, $rows) AS g(i)" -c "$answer" &&
    is t sql -c "SET temp_tablespaces = 'heap'" -c "SELECT sum(c) FROM (SELECT id, count(*) AS c FROM t GROUP BY id)" \
        -c "SELECT bytes_peak > 100000 FROM tidepool.memory WHERE tablespace = 'heap' AND purpose = 'heap'" &&
    is "$expected" sql -c "SET temp_tablespaces = 'heap'" -c "$answer" &&
    refused '"heap"' sql -c "DROP TABLESPACE heap" -c "CREATE TABLE u (a int) TABLESPACE heap"
}

# Striped over two devices, or near memory and one, which then goes.
striped() {
    data=/tmp/data4
    places="anon:*3, $far*1"; [ -z "$second" ] || places="$far*1, $second*1"
    plain() { sql_far "anon:,size=64MB" "$@"; }
    is "$expected" plain -c "CREATE TABLESPACE uniform LOCATION '$places' WITH (size = '$size', huge_pages = $huge)" \
        -c "CREATE TABLE t (id bigint, k int, note text) TABLESPACE uniform" \
        -c "INSERT INTO t SELECT i, i % 10, 'note ' || (i % 100) FROM generate_series(1, $rows) AS g(i)" -c "$answer" &&
    is "$expected" plain -c "ALTER TABLESPACE uniform ADD LOCATION 'anon:*1'" -c "$answer" &&
    is "$expected" plain -c "ALTER TABLESPACE uniform DROP LOCATION '$far'" -c "$answer" &&
    is "$expected" plain -c "ALTER TABLESPACE uniform SET (size = '48MB')" -c "$answer"
}

case $far in file:*) export TIDEPOOL_TEST_FOLDER="${path%/*}" ;; esac
# Nothing of pacing and paging depends on a device's driver, and an emulated processor keeps no times.
rust_tests device --skip pacing --skip paged
# Page faults are the kernel's, so one guest takes them: some milliseconds each, as each makes the emulator forget translations.
# The test of foreign signals starts itself again, which a program with its own loader cannot.
[ "$scenario" != numa ] || rust_tests device paged:: --skip a_foreign_sigbus
rust_tests tablespace
export TIDEPOOL_TEST_DEVICES="$far $second"
rust_tests tablespace --ignored devices
# A CXL window is emulated access by access: hours for what these tests touch.
if [ "$scenario" = numa ]; then export TIDEPOOL_TEST_LOCATION=$far; rust_tests heap; unset TIDEPOOL_TEST_LOCATION; fi

test_case sql "a table is created and loaded there" create_and_load
test_case sql "a table moves near and back" move_the_table
test_case sql "one column moves there" move_a_column
test_case sql "statements' heaps lie there" heap_there
case $far in
    numa:*)
        ! wanted sql || sql -c "ALTER TABLE t SET TABLESPACE far" > /tmp/out 2>&1
        test_case sql "a server's pages lie on the node" in_use pages_on_the_node
        test_case sql "a node that is not there is named" refused "NUMA node 7 does not exist" sql_far numa:7,size=64MB -c "SELECT 1"
        [ "$scenario" != numa ] ||
            test_case sql "a node without memory is named" refused "NUMA node 1 has no memory" sql_far numa:1,size=64MB -c "SELECT 1" ;;
    *)
        test_case sql "the superblock is known again" reopened
        test_case sql "a second process is refused" in_use second_process
        test_case sql "a killed server's main and log are found there" found_again
        case $far in file:*) test_case sql "MAP_SYNC is used where there is any" in_use synchronous ;; esac
        test_case sql "foreign content is left as it is" foreign_content ;;
esac
test_case sql "a dropped table leaves nothing" dropped
[ -z "$second" ] || test_case sql "columns and heaps in two places" two_places
test_case sql "a tablespace is striped, and loses the device" striped

. ./pool.sh
case $scenario in
    numa)
        pool_tests tmpfs file:/dev/shm/pool "--size 128MB" file:/dev/shm/more,size=64MB
        # If that fails, the tests say so.
        mkdir -p /mnt/huge && mount -t hugetlbfs none /mnt/huge && echo 100 > /proc/sys/vm/nr_hugepages
        pool_tests hugetlbfs file:/mnt/huge/pool "--size 128MB" file:/mnt/huge/more,size=64MB
        echo 0 > /proc/sys/vm/nr_hugepages ;;
    cxl-ram)
        node=${far#numa:}
        mkdir -p /mnt/node && mount -t tmpfs -o "size=128M,mpol=bind:$node" none /mnt/node
        pool_tests "tmpfs on node $node" file:/mnt/node/pool "--size 64MB" file:/mnt/node/more,size=32MB ;;
    *)
        case $far in
            file:*) rm -f "$path"; more=file:/mnt/far/more,size=64MB create="--size 128MB" ;;
            dax:*)
                [ -z "$groups" ] || program ./tidepool sql --data /tmp/data6 --near 128MB --far "$far,size=$size" -c "SELECT 1" > /tmp/out 2>&1
                test_case pool "a tablespace's device is not taken" refused "belongs to a tablespace" pool_program pool create "$far"
                poke -z "$path"; more=${second:-file:/dev/shm/more,size=64MB} create=
                [ -z "$second" ] || poke -z "${second#dax:}" ;;
        esac
        pool_tests "${far%%:*}" "$far" "$create" "$more" ;;
esac
exit $failed
