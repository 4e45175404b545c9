# Functions for the scripts of corpora.toml. A script runs in the folder of the tree that it makes. $CORPORA is the folder of all
# trees, and $DEBS an empty one for packages.

# Prints the names of packages and of all that they depend on, alternatives included. Virtual packages are in angle brackets, and
# packages of other architectures have a colon.
closure() {
	apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces --no-enhances "$@" |
		grep '^[[:alnum:]]' | grep -v '[:<]' | LC_ALL=C sort -u
}

# Downloads packages and unpacks them, not configured, in the order of their names.
packages() {
	(cd "$DEBS" && apt-get download -qq "$@")
	for deb in "$DEBS"/*.deb; do
		dpkg -x "$deb" .
	done
}

# Prints the names of packages of which the archive has more than one version, each with the second newest.
older() {
	apt-cache madison "$@" | awk -F'[ |]+' '$1 == "" { name = $2; version = $3 } $1 != "" { name = $1; version = $2 }
		!(name in newest) { newest[name] = version; next }
		version != newest[name] && !(name in second) { second[name] = 1; print name, version }' | LC_ALL=C sort
}

# Unpacks releases of a Python package that have no machine code: PACKAGE VERSION... The folders are PACKAGE/NUMBER-VERSION.
releases() {
	package=$1
	shift
	number=10
	for version in "$@"; do
		python3 -m pip download -q --disable-pip-version-check --no-deps --only-binary :all: -d "$DEBS" "$package==$version"
		python3 -m zipfile -e "$DEBS/$package-$version"-*.whl "$package/$number-$version"
		number=$((number + 1))
	done
}

# Prints the content of a file, or of all files below a folder in the order of their paths. Takes further conditions of find.
content() {
	find "$@" -type f -print0 | tr / '\001' | LC_ALL=C sort -z | tr '\001' / | xargs -0 cat
}

# Writes a part of standard input to the file $3: skips $1 MiB and takes $2 MiB, or fails if there are fewer.
part() {
	mkdir -p "$(dirname "$3")"
	dd bs=1M iflag=fullblock status=none skip="$1" count="$2" of="$3"
	[ "$(stat -c %s "$3")" -eq $(($2 << 20)) ]
}
