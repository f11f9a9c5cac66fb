package replicas

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strconv"

	"github.com/trivet-dev/trivet/internal/atomicfile"
)

// maxStateBytes bounds the file that is read.
const maxStateBytes = 64 << 10

// state is the content of the state file.
type state struct {
	// Source is the String of the Source that found the addresses.
	Source    string   `json:"source"`
	Addresses []string `json:"addresses"`
}

// readState returns the stored addresses; none if there is no file, or if it is of another source.
func readState(file, source string) ([]string, error) {
	info, err := os.Stat(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular() || info.Size() > maxStateBytes:
		return nil, fmt.Errorf("need a regular file of at most %d bytes", maxStateBytes)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var stored state
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&stored); err != nil {
		return nil, fmt.Errorf("decode: %w", err)
	}
	if stored.Source != source {
		return nil, nil
	}
	if len(stored.Addresses) > maxAddresses {
		return nil, fmt.Errorf("%d addresses, at most %d are possible", len(stored.Addresses), maxAddresses)
	}
	for _, address := range stored.Addresses {
		if err := checkAddress(address); err != nil {
			return nil, err
		}
	}
	return stored.Addresses, nil
}

// checkAddress checks an address that a source or a file names.
func checkAddress(address string) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	if _, err := netip.ParseAddr(host); err != nil {
		return fmt.Errorf("address %q: %w", address, err)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("address %q: the port is not a number from 1 to 65535", address)
	}
	return nil
}

// writeState replaces the file.
func writeState(file, source string, addresses []string) error {
	text, err := json.Marshal(state{Source: source, Addresses: addresses})
	if err != nil {
		return err
	}
	return atomicfile.Write(file, append(text, '\n'), 0o600)
}
