#!/bin/sh
# Carries out what the host says on the second serial port, a line at a time, and answers there (pair.py). Takes run.sh's place
# in a guest that is one of two. Writers say on the third port what was acknowledged to them; on the fourth the host says when
# something is to go on, and whether another machine is dead.
cd "$(dirname "$0")" || exit 1
# As the system's: a server that rejoins begins its own program anew, which has to find its libraries then, too.
export LD_LIBRARY_PATH=$PWD/lib PATH=$PWD:$PATH
ports=${ports:-/dev/ttyS}
export fourth=${ports}3
for port in 1 2 3; do stty -F $ports$port raw -echo 115200; done
url=postgresql://tidepool@127.0.0.1:5477/tidepool
sql() { tidepool sql $url --format csv "$@"; }

# serve NAME ARGUMENTS…: until it answers; its process is $server.
serve() {
    name=$1; shift
    # What it said in an earlier life is no answer.
    : > "/tmp/serve-$name"
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
    (seq "$1" $(($1 + $2 - 1)) | sed "s/.*/INSERT INTO t VALUES (&, 'note &');/" | tidepool sql $url; echo "writer ended with $?") \
        > ${ports}2 2>&1 3<&- &
}

# asks STATEMENT: a client that is connected, and sends the statement when the host says so on the fourth port. What it was
# told is in /tmp/asked.
asks() {
    rm -f /tmp/asks /tmp/asked; mkfifo /tmp/asks; : > /tmp/asked
    (tidepool sql $url --format csv -c "SELECT 'connected'" -f /tmp/asks > /tmp/asked 2>&1; echo "ended with $?" >> /tmp/asked) 3<&- &
    (read -r go < "$fourth"; echo "$1" > /tmp/asks) 3<&- &
    for _ in $(seq 300); do grep -q '^connected' /tmp/asked && return; sleep 0.2; done
    cat /tmp/asked; return 1
}

exec 3<>${ports}1
echo "<<ready>>" >&3
while read -r line <&3; do
    [ "$line" != off ] || break
    eval "$line" < /dev/null >&3 2>&1
    echo "<<ended $?>>" >&3
done
