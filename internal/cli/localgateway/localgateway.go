// Package localgateway finds the gateway that the same user runs on this machine. `trivet-lab up`
// writes a file with the environment variables that commands read.
package localgateway

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	// ServerVariable has the gRPC address, HTTPServerVariable the address of the page, each
	// host:port.
	ServerVariable, HTTPServerVariable = "TRIVET_SERVER", "TRIVET_HTTP_SERVER"
	// CAFileVariable has the authorities of the gateway.
	CAFileVariable = "TRIVET_CA_FILE"
	// CertFileVariable and KeyFileVariable have the client certificate of the user.
	CertFileVariable, KeyFileVariable = "TRIVET_CERT_FILE", "TRIVET_KEY_FILE"
)

const (
	// fileName is the name of the file in the folder of [File].
	fileName = "up.env"
	// acceptTimeout is how long a gateway on loopback may take to accept a connection.
	acceptTimeout = 300 * time.Millisecond
	// maxFileBytes bounds what is read of the file.
	maxFileBytes = 64 << 10
)

// Find returns a lookup of the variables in the file. It reports false without a file, if another
// user is able to write it, and if nothing accepts a connection at its address: a killed process
// leaves its file.
//
// The variables name the authorities of the gateway. A file of another user would send the person's
// token to a server of that user: XDG_RUNTIME_DIR and HOME may be shared, or be those of another
// user after `su`.
func Find(env func(string) string) (published func(name string) string, found bool) {
	file := File(env)
	if file == "" {
		return nil, false
	}
	text, err := readOwn(file)
	if err != nil {
		return nil, false
	}
	values := parse(text)
	conn, err := net.DialTimeout("tcp", values[ServerVariable], acceptTimeout)
	if err != nil {
		return nil, false
	}
	_ = conn.Close()
	return func(name string) string { return values[name] }, true
}

// File returns the path of the file, which has lines NAME=value. It is empty if the environment
// names no folder of the user.
func File(env func(string) string) string {
	if dir := env("XDG_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, "trivet", fileName)
	}
	if home := env("HOME"); home != "" {
		return filepath.Join(home, ".cache", "trivet", fileName)
	}
	return ""
}

func parse(text []byte) map[string]string {
	values := map[string]string{}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), "=")
		values[name] = value
	}
	return values
}

// readOwn reads a file that only this user is able to write or to replace.
func readOwn(path string) ([]byte, error) {
	if err := CheckOwn(os.Lstat(filepath.Dir(path))); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if err := CheckOwn(file.Stat()); err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(file, maxFileBytes))
}

// CheckOwn fails for a file or folder that another user is able to write. Its parameters are the
// results of [os.Lstat].
func CheckOwn(info os.FileInfo, err error) error {
	if err != nil {
		return err
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.IsDir() && !info.Mode().IsRegular():
		return fmt.Errorf("%s is neither a file nor a folder", info.Name())
	case !ok || int(owner.Uid) != os.Geteuid():
		return fmt.Errorf("%s belongs to another user", info.Name())
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("%s is writable by other users", info.Name())
	default:
		return nil
	}
}
