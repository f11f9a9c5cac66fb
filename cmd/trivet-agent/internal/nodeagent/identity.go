package nodeagent

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/trivet-dev/trivet/cmd/trivet-agent/internal/kubeconfig"
	"github.com/trivet-dev/trivet/internal/backoff"
	"github.com/trivet-dev/trivet/internal/identity"
)

const (
	// bootIDFile is what a kubelet reports as NodeInfo.bootID.
	bootIDFile = "/proc/sys/kernel/random/boot_id"
	// nodeUserPrefix and the name of a Node make the user of its kubelet.
	nodeUserPrefix = "system:node:"
	// retryPeriod is the time between two reads of files that do not exist yet: a new node has no
	// certificate before its kubelet has registered.
	retryPeriod = time.Second
)

// credentialFiles returns the files of the identity at leasesvc.
func (c *Config) credentialFiles(kube *kubeconfig.File) (identity.Files, error) {
	files := identity.Files{CertFile: c.ClientCertFile, KeyFile: c.ClientKeyFile, CAFile: c.Leasesvc.CAFile}
	if c.TokenFile != "" {
		return identity.Files{CAFile: files.CAFile}, nil
	}
	if files.CertFile != "" {
		return files, nil
	}
	if kube == nil {
		return files, errors.New("no client certificate for leasesvc")
	}
	if kube.CertFile != "" && kube.KeyFile != "" {
		files.CertFile, files.KeyFile = kube.CertFile, kube.KeyFile
		return files, nil
	}
	if len(kube.CertData) == 0 || len(kube.KeyData) == 0 {
		return files, fmt.Errorf("--kubeconfig %s has no client certificate; give --client-cert-file and --client-key-file", c.Kubeconfig)
	}
	// A certificate in the kubeconfig itself is stored as files, because files can be followed.
	pair := filepath.Join(c.StateDir, "client.pem")
	if err := os.WriteFile(pair, append(append(kube.CertData[:len(kube.CertData):len(kube.CertData)], '\n'), kube.KeyData...), 0o600); err != nil {
		return files, fmt.Errorf("store the client certificate of --kubeconfig: %w", err)
	}
	files.CertFile, files.KeyFile = pair, pair
	return files, nil
}

// nodeIdentity is what the agent beats with.
type nodeIdentity struct {
	node   string
	bootID string
	// client is nil with --leasesvc-insecure.
	client *identity.Client
}

// awaitIdentity waits until the files of the identity can be used. waiting is called with the cause
// of each failure.
func awaitIdentity(ctx context.Context, cfg *Config, files func() (identity.Files, error), logger *slog.Logger, waiting func(error)) (nodeIdentity, error) {
	for logged := ""; ; {
		found, err := readIdentity(cfg, files, logger)
		if err == nil {
			return found, nil
		}
		waiting(err)
		if cause := err.Error(); cause != logged {
			logged = cause
			logger.Warn("the identity of the node is not usable yet; trying again until it is", "error", err)
		}
		if !backoff.Sleep(ctx, retryPeriod) {
			return nodeIdentity{}, ctx.Err()
		}
	}
}

func readIdentity(cfg *Config, credentialFiles func() (identity.Files, error), logger *slog.Logger) (nodeIdentity, error) {
	found := nodeIdentity{node: cfg.NodeName}
	var err error
	if found.bootID, err = readBootID(bootIDFile); err != nil || cfg.Leasesvc.Insecure {
		return found, err
	}
	files, err := credentialFiles()
	if err != nil {
		return found, err
	}
	if found.client, err = files.Client(logger); err != nil {
		return found, err
	}
	if files.CertFile == "" {
		return found, nil
	}
	named, err := nodeOfCertificate(files)
	switch {
	case err != nil:
		return found, err
	case found.node == "":
		found.node = named
	case found.node != named:
		return found, fmt.Errorf("the client certificate %s is of node %q, and --node-name is %q", files.CertFile, named, found.node)
	}
	return found, nil
}

// nodeOfCertificate returns the node whose kubelet has a certificate.
func nodeOfCertificate(files identity.Files) (string, error) {
	pair, err := tls.LoadX509KeyPair(files.CertFile, files.KeyFile)
	if err != nil {
		return "", err
	}
	leaf, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		return "", err
	}
	node, found := strings.CutPrefix(leaf.Subject.CommonName, nodeUserPrefix)
	if !found || node == "" {
		return "", fmt.Errorf("the client certificate %s is of user %q, not of a node (%s…)", files.CertFile, leaf.Subject.CommonName, nodeUserPrefix)
	}
	return node, nil
}

var bootIDs = regexp.MustCompile(`^[-A-Za-z0-9._:]{1,64}$`)

// readBootID returns the boot of the machine as the kubelet reports it.
func readBootID(file string) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("read the boot id of the node: %w", err)
	}
	boot := strings.TrimSpace(string(text))
	if !bootIDs.MatchString(boot) {
		return "", fmt.Errorf("the boot id %q in %s is not usable", boot, file)
	}
	return boot, nil
}
