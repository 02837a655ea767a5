# Pools on the guest's devices: made, served from, killed, extended, damaged by absence, destroyed. Read by run.sh.
pool_url=postgresql://tidepool@127.0.0.1:5477/tidepool
# Silent for so long, a primary is taken over from: an emulated processor beside others delays beats.
export TIDEPOOL_POOL_HOST_TIMEOUT=5s
pool_program() { LD_LIBRARY_PATH=$PWD/lib ./tidepool "$@"; }

# serve_pool NAME PORT ROLE: until it answers; its process is $server.
serve_pool() {
    LD_LIBRARY_PATH=$PWD/lib ./tidepool serve --pool "$pool" --name "$1" --role "$3" --listen "127.0.0.1:$2" --near 64MB --far pool: \
        --threads 2 > "/tmp/serve-$1" 2>&1 &
    server=$!
    for _ in $(seq 300); do
        grep -q "^tidepool is ready" "/tmp/serve-$1" && return
        kill -0 $server 2> /tmp/ended || break
        sleep 0.3
    done
    cat "/tmp/serve-$1"; return 1
}
killed_pool() { kill -9 $server; wait $server 2> /tmp/ended; }
stopped_pool() { kill $server; wait $server; }
pool_sql() { pool_program sql $pool_url --format csv "$@"; }
pool_is_clean() {
    pool_program pool check "$pool" --deep > /tmp/checked || { cat /tmp/checked; return 1; }
    cat /tmp/checked; grep -q ", 0 faults" /tmp/checked
}

# Whether no other kernel could have the pool's memory mapped: then a lock that is free is a death.
is_of_one_kernel() { case $pool in file:/dev/shm/* | file:/mnt/huge/* | file:/mnt/node/*) return 0 ;; *) return 1 ;; esac; }
# The pool's file is on the memory that is meant, and not in a folder whose mount failed.
is_there() {
    case $pool in
        file:/dev/shm/*) grep ' /dev/shm tmpfs ' /proc/mounts ;;
        file:/mnt/huge/*) grep ' /mnt/huge hugetlbfs ' /proc/mounts ;;
        file:/mnt/node/*) grep ' /mnt/node tmpfs .*mpol=bind' /proc/mounts ;;
        file:/mnt/far/*) grep ' /mnt/far ext4 .*dax=always' /proc/mounts ;;
        dax:*) ls -l "${pool#dax:}" && [ -c "${pool#dax:}" ] ;;
        *) echo "no kind of memory is known for $pool"; return 1 ;;
    esac
}
# The server has the pool mapped as the memory allows.
is_mapped_well() {
    case $pool in
        file:/mnt/far/*) synchronous ;;
        file:/mnt/node/*)
            grep "file=${pool#file:}" "/proc/$server/numa_maps" > /tmp/maps; head -3 /tmp/maps
            grep -q "N$node=[1-9]" /tmp/maps && ! sed "s/N$node=[0-9]*//g" /tmp/maps | grep -q ' N[0-9]*=' ;;
        *) grep -q "${pool#*:}" "/proc/$server/maps" ;;
    esac
}
pool_made() {
    is_there || return
    pool_program pool create "$pool" $pool_create || return
    pool_program pool list "$pool" || return
    refused "is device 0 of a pool already" pool_program pool create "$pool" $pool_create &&
        refused "several processes cannot share" pool_program pool create anon: --size 8MB
}
# What a killed server acknowledged is there in the next, by its manifest and by its log. Where another kernel could have the
# memory mapped, nobody knows that it is dead until an operator says so.
pool_killed() {
    serve_pool h0 5477 primary && pool_sql -c "CREATE TABLE t (id bigint PRIMARY KEY, k int, note text)" \
        -c "INSERT INTO t SELECT i, i % 10, 'note ' || (i % 100) FROM generate_series(2, $rows) AS g(i)" \
        -c "CALL tidepool.merge('t')" -c "INSERT INTO t VALUES (1, 1, 'note 1')" && is_mapped_well || return
    killed_pool
    serve_pool h1 5477 primary || return
    is "$expected" pool_sql -c "$answer"; rc=$?
    pool_program pool list "$pool" | tee /tmp/list
    if is_of_one_kernel; then ! grep -q " h0 " /tmp/list; else grep " h0 " /tmp/list | grep -q suspect; fi || rc=1
    killed_pool
    pool_is_clean && return $rc
}
# On one machine a standby sees that the lock of the primary is released, so the death is certain on every memory.
pool_taken_over() {
    serve_pool h2 5477 primary || return
    first=$server
    serve_pool h3 5478 standby || return
    is "$expected" pool_program sql postgresql://tidepool@127.0.0.1:5478/tidepool --format csv -c "$answer" || return
    kill -9 $first; wait $first 2> /tmp/ended
    # Clients find the next one where the first was.
    for _ in $(seq 100); do pool_sql -c "INSERT INTO t VALUES (0, 0, 'note 0')" > /tmp/out2 2>&1 && break; sleep 0.3; done
    is "$expected" pool_sql -c "DELETE FROM t WHERE id = 0" -c "$answer" || { cat /tmp/out2 /tmp/serve-h3; return 1; }
    pool_program pool list "$pool" | tee /tmp/list
    ! grep -q "h2" /tmp/list && stopped_pool && pool_is_clean
}
pool_extended() {
    serve_pool h4 5477 primary || return
    pool_program pool add "$pool" "$pool_more" && pool_sql -c "CREATE TABLE u (id bigint, note text)" \
        -c "INSERT INTO u SELECT i, 'note ' || (i % 100) FROM generate_series(1, $rows) AS g(i)" && is "$rows" pool_sql -c "SELECT count(*) FROM u"
    rc=$?
    stopped_pool && [ $rc = 0 ] && serve_pool h5 5477 primary && is "$expected" pool_sql -c "$answer" && is "$rows" pool_sql -c "SELECT count(*) FROM u"
    rc=$?
    stopped_pool; pool_program pool list "$pool"; return $rc
}
pool_device_missing() {
    more=${pool_more%%,*}
    case $more in
        file:*) mv "${more#file:}" "${more#file:}.away" ;;
        dax:*) echo "${more#dax:/dev/}" > /sys/bus/dax/drivers/device_dax/unbind ;;
    esac
    refused "device \"$more\"" pool_program pool check "$pool"; rc=$?
    pool_program pool list "$pool" | grep -i missing || rc=1
    case $more in
        file:*) mv "${more#file:}.away" "${more#file:}" ;;
        dax:*) echo "${more#dax:/dev/}" > /sys/bus/dax/drivers/device_dax/bind ;;
    esac
    [ $rc = 0 ] && pool_is_clean
}
pool_destroyed() {
    if ! is_of_one_kernel; then
        refused "is in use" pool_program pool destroy "$pool" && pool_program pool forget "$pool" h0 &&
            pool_program pool forget "$pool" h1 && pool_is_clean || return
    fi
    pool_program pool destroy "$pool" || return
    case $pool in
        dax:*) refused "there is no pool in" pool_program pool list "$pool" ;;
        *) refused "could not open" pool_program pool list "$pool" ;;
    esac
}

# pool_tests WHAT LOCATION CREATE-OPTIONS MORE: a pool there, with a device that is added.
pool_tests() {
    pool=$2 pool_create=$3 pool_more=$4
    test_case pool "$1: a pool is made, and known again" pool_made
    test_case pool "$1: a killed server's database is found in it" pool_killed
    test_case pool "$1: a standby takes over from a killed primary" pool_taken_over
    test_case pool "$1: a device is added while the pool is in use" pool_extended
    test_case pool "$1: a device that is missing is named" pool_device_missing
    test_case pool "$1: the pool is destroyed" pool_destroyed
}
