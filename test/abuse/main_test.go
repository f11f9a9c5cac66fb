package abuse

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/trivet-dev/trivet/internal/identity"
)

// roleVariable names what a child process does, and settingsVariable has its settings as JSON.
const (
	roleVariable     = "TRIVET_ABUSE_ROLE"
	settingsVariable = "TRIVET_ABUSE_SETTINGS"
)

// TestMain runs the tests, or a child process of them.
func TestMain(m *testing.M) {
	var err error
	switch role := os.Getenv(roleVariable); role {
	case "server":
		err = serve()
	case "attacker":
		err = attack()
	default:
		os.Exit(m.Run())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// settings reads the settings of a child process.
func settings(into any) error {
	return json.Unmarshal([]byte(os.Getenv(settingsVariable)), into)
}

// child returns the command of a child process.
func child(t *testing.T, role string, settings any) *exec.Cmd {
	t.Helper()
	text, err := json.Marshal(settings)
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command(program) // a server ends after the test's context
	command.Env = append(os.Environ(), roleVariable+"="+role, settingsVariable+"="+string(text))
	command.Stderr = os.Stderr
	return command
}

// clientTLS returns the configuration of a client. Without a CertFile it has no certificate.
func clientTLS(files identity.Files) (*tls.Config, error) {
	config := &tls.Config{RootCAs: x509.NewCertPool(), ServerName: serverName, NextProtos: []string{"h2"}}
	authorities, err := os.ReadFile(files.CAFile)
	if err != nil {
		return nil, err
	}
	config.RootCAs.AppendCertsFromPEM(authorities)
	if files.CertFile == "" {
		return config, nil
	}
	pair, err := tls.LoadX509KeyPair(files.CertFile, files.KeyFile)
	config.Certificates = []tls.Certificate{pair}
	return config, err
}
