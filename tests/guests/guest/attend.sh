#!/bin/sh
# Carries out what the host says on the second serial port, a line at a time, and answers there (pair.py). Takes run.sh's place
# in a guest that is one of two. Writers say on the third port what was acknowledged to them; the fourth is for fencing.
cd "$(dirname "$0")" || exit 1
# As the system's: a server that rejoins begins its own program anew, which has to find its libraries then, too.
export LD_LIBRARY_PATH=$PWD/lib PATH=$PWD:$PATH
for port in 1 2 3; do stty -F /dev/ttyS$port raw -echo; done
url=postgresql://tidepool@127.0.0.1:5477/tidepool
sql() { tidepool sql $url --format csv "$@"; }

# serve NAME ARGUMENTS…: until it answers; its process is $server.
serve() {
    name=$1; shift
    tidepool serve --pool "$pool" --name "$name" --listen 127.0.0.1:5477 --near 64MB --far pool: --threads 2 "$@" \
        > "/tmp/serve-$name" 2>&1 3<&- &
    server=$!
    for _ in $(seq 600); do
        grep -q "^tidepool is ready" "/tmp/serve-$name" && return
        kill -0 $server 2> /tmp/ended || break
        sleep 0.3
    done
    cat "/tmp/serve-$name"; return 1
}
# stopped: as an operator stops a server.
stopped() { kill $server; wait $server; }

# writer FIRST COUNT: inserts rows one by one, behind what the host does next.
writer() {
    row=$1 last=$(($1 + $2)); set --
    while [ $row -lt $last ]; do set -- "$@" -c "INSERT INTO t VALUES ($row, 'note $row')"; row=$((row + 1)); done
    (tidepool sql $url "$@"; echo "writer ended with $?") > /dev/ttyS2 2>&1 3<&- &
}

exec 3<>/dev/ttyS1
echo "<<ready>>" >&3
while read -r line <&3; do
    [ "$line" != off ] || break
    eval "$line" < /dev/null >&3 2>&1
    echo "<<ended $?>>" >&3
done
