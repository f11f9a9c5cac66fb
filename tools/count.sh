#!/usr/bin/env bash
# Prints the size of the repository: lines, files and packages of hand-written Go for each part. "code" counts the lines
# that are neither blank nor a comment. The part "lab" is test/lab, and test kits beside the package whose inside they
# need: directories whose name ends in "test".
# Usage: tools/count.sh [REPOSITORY]
set -euo pipefail
cd "${1:-$(dirname "${BASH_SOURCE[0]}")/..}"

git ls-files -- '*.go' | { grep -v -E '^third_party/|\.pb(\.gw)?\.go$' || true; } | while read -r file; do
	[ -f "$file" ] && echo "$(wc -l <"$file") $file $(grep -cvE '^[[:space:]]*(//|$)' "$file")"
done | awk '
	{
		n = split($2, path, "/")
		part = path[1]
		if (part == "services" || part == "cmd") part = part "/" path[2]
		folder = $2; sub(/\/[^\/]*$/, "", folder)
		if (folder ~ /^test\/lab\/|^(agent|cmd|deploy|gateway|internal|services)\/.*test$/) part = "lab"
		if ($2 ~ /_test\.go$/) { tests[part] += $1; testFiles[part]++ }
		else {
			lines[part] += $1; code[part] += $3; files[part]++
			if ($1 < 60) small[part]++
			if (!(folder in seen)) { seen[folder] = 1; packages[part]++ }
		}
		parts[part] = 1
	}
	function row(name, part) {
		printf "%-22s %8d %7d %7d %9d %10d %8d %7d\n", name, lines[part], code[part], files[part], packages[part], small[part], tests[part], testFiles[part]
	}
	function add(to, part) {
		lines[to] += lines[part]; code[to] += code[part]; files[to] += files[part]; packages[to] += packages[part]
		small[to] += small[part]; tests[to] += tests[part]; testFiles[to] += testFiles[part]
	}
	END {
		printf "%-22s %8s %7s %7s %9s %10s %8s %7s\n", "part", "product", "code", "files", "packages", "under 60", "tests", "files"
		m = asorti_portable(parts, order)
		for (i = 1; i <= m; i++) {
			part = order[i]
			row(part, part)
			add("all", part)
			if (part ~ /^(agent|deploy|gateway|internal|cmd\/.*|services\/.*)$/) add("product", part)
		}
		row("product", "product")
		row("all", "all")
		printf "\ntests and laboratory: %d lines (tests %d, lab %d, the rest of test/ %d)\n",
			tests["all"] + lines["lab"] + lines["test"], tests["all"], lines["lab"], lines["test"]
	}
	function asorti_portable(set, order,   n, key, i, j, t) {
		for (key in set) order[++n] = key
		for (i = 2; i <= n; i++) for (j = i; j > 1 && order[j] < order[j-1]; j--) { t = order[j]; order[j] = order[j-1]; order[j-1] = t }
		return n
	}'
