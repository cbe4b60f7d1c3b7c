# shellcheck shell=bash disable=SC2034
# Firefox without a screen, with its own sandbox: content processes under seccomp filters, which
# report each denied call. A page with a script, pictures and storage must look the same, the same
# calls must be denied, and no process may be killed.
packages=(firefox-esr)
user=nobody

page() {
    cat <<'END_OF_PAGE'
<!DOCTYPE html><meta charset="utf-8"><title>page</title>
<style>body { margin: 0; background: #204060 } img { width: 64px; height: 64px }</style>
<img src="picture.svg"><canvas id="c" width="64" height="64"></canvas>
<script>
let sum = 0;
for (let i = 0; i < 3000000; i++) sum = (sum + i * i) % 1000003;
localStorage.setItem('sum', sum);
const at = document.getElementById('c').getContext('2d');
at.fillStyle = localStorage.getItem('sum') == sum ? '#00ff00' : '#ff0000';
at.fillRect(0, 0, 64, 64);
</script>
END_OF_PAGE
}

settings() {
    local name
    for name in app.update.enabled browser.aboutwelcome.enabled browser.shell.checkDefaultBrowser \
        datareporting.policy.dataSubmissionEnabled network.captive-portal-service.enabled \
        network.connectivity-service.enabled toolkit.telemetry.enabled; do
        echo "user_pref(\"$name\", false);"
    done
    echo 'user_pref("network.dns.disabled", true); user_pref("services.settings.server", "");'
}

# Notes that processes of this group have a seccomp filter, and that they are more than one.
watch() {
    local pid count
    while kill -0 "$1" 2> /dev/null; do
        count=0
        for pid in $(pgrep -g "$1"); do
            ! grep -qs '^Seccomp:[[:space:]]*2' "/proc/$pid/status" || count=$((count + 1))
        done
        [ "$count" -lt 2 ] || touch confined
        sleep 0.1
    done
}

work() {
    local rounds=5 round code firefox
    [ "$FOREIGN_SHORT" = no ] || rounds=1
    page > page.html
    echo '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 8 8"><circle cx="4" cy="4" r="4" fill="#fc0"/></svg>' > picture.svg
    mkdir profile
    settings > profile/user.js
    export MOZ_CRASHREPORTER_DISABLE=1 MOZ_SANDBOX_LOGGING=1
    for round in $(seq "$rounds"); do
        rm -f shot.png confined
        timeout -s KILL 120 firefox-esr --headless --no-remote --profile "$PWD/profile" --window-size=256,128 \
            --screenshot "$PWD/shot.png" "file://$PWD/page.html" > said 2>&1 &
        firefox=$! code=0
        watch "$firefox"
        wait "$firefox" || code=$?
        echo "round $round: exit code $code, confined: $([ -e confined ] && echo yes || echo no)"
        python3 -c '
import hashlib, struct, zlib
data, at, pixels = open("shot.png", "rb").read(), 8, b""
while at < len(data):
    length, kind = struct.unpack(">I4s", data[at:at + 8])
    pixels += data[at + 8:at + 8 + length] if kind == b"IDAT" else b""
    at += 12 + length
print("screenshot", *struct.unpack(">II", data[16:24]), hashlib.sha256(zlib.decompress(pixels)).hexdigest())'
        sed -n 's/.*\(seccomp sandbox violation\).*\(syscall [0-9]*\).*/\1: \2/p' said | sort -u
        grep -ciE 'sigsys|exited on signal|crash' said || true
    done
}
