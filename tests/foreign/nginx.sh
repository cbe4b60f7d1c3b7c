# shellcheck shell=bash disable=SC2034
# nginx: static files by sendfile and by read, under a load of wrk; a reload and reopened logs under
# load.
packages=(nginx-light wrk curl)
in_short=yes

work() {
    local seconds=5 port n
    [ "$FOREIGN_SHORT" = no ] || seconds=1
    port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
    mkdir -p www/sub
    for n in 1 100 4096 65536 3000000; do head -c "$n" < <(seq 1000000) > "www/sub/file$n"; done
    cat > conf <<END
worker_processes 2;
pid $PWD/pid;
error_log $PWD/errors;
events { worker_connections 256; }
http {
    access_log $PWD/access;
    client_body_temp_path $PWD/body; proxy_temp_path $PWD/proxy; fastcgi_temp_path $PWD/fastcgi;
    uwsgi_temp_path $PWD/uwsgi; scgi_temp_path $PWD/scgi;
    server {
        listen 127.0.0.1:$port;
        root $PWD/www;
        location /sub/ { sendfile on; }
        location /read/ { alias $PWD/www/sub/; sendfile off; }
    }
}
END
    # As root, the default workers run as another user, who may not enter this folder.
    [ "$(id -u)" != 0 ] || sed -i '1i user root;' conf
    chmod -R a+rX .
    nginx -c "$PWD/conf" -e "$PWD/errors"
    for n in 1 100 4096 65536 3000000; do
        curl -s "http://127.0.0.1:$port/sub/file$n" | sha256sum
        curl -s "http://127.0.0.1:$port/read/file$n" | sha256sum
        curl -s -r 10-50 "http://127.0.0.1:$port/read/file$n" | sha256sum
    done
    curl -s -o /dev/null -w '%{http_code}\n' "http://127.0.0.1:$port/none"
    wrk -t 2 -c 16 -d "$seconds" "http://127.0.0.1:$port/sub/file4096" > load &
    local load=$!
    sleep 0.5
    mv access access.1
    nginx -c "$PWD/conf" -e "$PWD/errors" -s reopen
    nginx -c "$PWD/conf" -e "$PWD/errors" -s reload
    wait "$load"
    # The reload closes kept-alive connections between two requests; wrk counts each as a read error
    # and connects again. How many there are depends on the moment: at most the 16 connections, once
    # for each of the two old workers. wrk prints no line of errors if there are none.
    awk '
        /Socket errors/ { gsub(",", ""); connect = $4; read = $6; write = $8; timeout = $10 }
        /Non-2xx/ { other = $NF }
        /requests in/ { served = $1 }
        END {
            print "errors: connect", connect + 0, "write", write + 0, "timeout", timeout + 0, "not 2xx", other + 0
            print (read <= 32 ? "no connection was closed but by the reload" : "more connections were closed than open")
            print (served > 0 ? "requests were served" : "no request was served")
        }' load
    nginx -c "$PWD/conf" -e "$PWD/errors" -s quit
    while [ -e pid ]; do sleep 0.05; done
    cat access.1 access | grep -v 'GET /sub/file4096 ' | awk '{ print $7, $9, $10 }' | sort
    grep -E 'emerg|alert|crit' errors || true
}
