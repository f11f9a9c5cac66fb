#!/usr/bin/env bash
# Compares proto/ with an earlier commit: the last release; before the first release, the commit at which this branch left
# main; on main, the last commit if proto/ has changed since, else the one before. Alpha and beta packages may change
# freely: see buf.yaml.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Prints a commit, or nothing: a tree without history, as CI may have it, has nothing to compare with.
base() {
	git describe --tags --abbrev=0 --match 'v[0-9]*' 2>/dev/null && return
	local head main
	head=$(git rev-parse --verify --quiet HEAD 2>/dev/null) || return 0
	main=$(git merge-base HEAD main 2>/dev/null || git merge-base HEAD origin/main 2>/dev/null || true)
	if [ -n "$main" ] && [ "$main" != "$head" ]; then
		echo "$main"
	elif ! git diff --quiet HEAD -- proto; then
		echo "$head"
	else
		git rev-parse --verify --quiet HEAD^ || true
	fi
}

base=$(base)
if [ -z "$base" ]; then
	echo "buf breaking: there is no earlier commit to compare with"
	exit 0
fi
# Until this file was deleted, the packages named v1 were a draft that nothing outside the repository used. No commit
# that still has it is a promise, so the commit that deletes it passes.
if git cat-file -e "$base:proto/trivet/gateway/v1/gateway.proto" 2>/dev/null; then
	echo "buf breaking: $base is older than the API and promises nothing"
	exit 0
fi
before=$(mktemp -d)
trap 'rm -rf "$before"' EXIT
git archive "$base" buf.yaml proto third_party/proto | tar -x -C "$before"
echo "buf breaking: comparing with $base"
buf breaking --against "$before"
