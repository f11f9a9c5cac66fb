package etcdconn_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.uber.org/zap"

	"github.com/trivet-dev/trivet/internal/etcdconn"
	"github.com/trivet-dev/trivet/test/lab/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func TestConfig_FlagsAndTheirDefaults(t *testing.T) {
	var cfg etcdconn.Config
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	cfg.RegisterFlags(fs)
	if diff := cmp.Diff(etcdconn.DefaultConfig(), cfg); diff != "" {
		t.Errorf("defaults of the flags differ from DefaultConfig (-want +got):\n%s", diff)
	}
	err := fs.Parse([]string{
		"--etcd-endpoints=https://a:1,https://b:2", "--etcd-ca-file=ca", "--etcd-cert-file=cert", "--etcd-key-file=key",
	})
	if err != nil {
		t.Fatal(err)
	}
	want := etcdconn.Config{
		Endpoints: []string{"https://a:1", "https://b:2"}, CAFile: "ca", CertFile: "cert", KeyFile: "key",
		DialTimeout: 2 * time.Second,
	}
	if diff := cmp.Diff(want, cfg); diff != "" {
		t.Errorf("parsed flags (-want +got):\n%s", diff)
	}
	if problems := cfg.Validate(); problems != nil {
		t.Errorf("Validate: %v", problems)
	}
}

func TestConfig_EveryProblemIsReportedWithItsFlag(t *testing.T) {
	for name, test := range map[string]struct {
		cfg  etcdconn.Config
		want []string
	}{
		"nothing given":              {cfg: etcdconn.Config{}, want: []string{"--etcd-endpoints: at least one"}},
		"no scheme":                  {cfg: config("127.0.0.1:2379"), want: []string{`--etcd-endpoints "127.0.0.1:2379"`}},
		"no port":                    {cfg: config("https://etcd"), want: []string{`--etcd-endpoints "https://etcd"`}},
		"beyond loopback":            {cfg: config("http://[::1]:1", "http://192.0.2.1:2379", "http://etcd:2379"), want: []string{`"http://192.0.2.1:2379": without TLS`, `"http://etcd:2379": without TLS`}},
		"a path":                     {cfg: config("http://etcd:2379/v3"), want: []string{`--etcd-endpoints "http://etcd:2379/v3"`}},
		"a password":                 {cfg: config("http://root:secret@etcd:2379"), want: []string{"--etcd-endpoints"}},
		"mixed":                      {cfg: config("http://127.0.0.1:1", "https://b:1"), want: []string{"cannot be mixed"}},
		"certificates without https": {cfg: etcdconn.Config{Endpoints: []string{"http://localhost:1"}, CAFile: "ca"}, want: []string{"certificates need https"}},
		"several": {
			cfg:  etcdconn.Config{Endpoints: []string{"a", "http://b"}, CertFile: "cert", DialTimeout: -1},
			want: []string{`"a"`, `"http://b"`, "--etcd-cert-file and --etcd-key-file", "dial timeout"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			problems := test.cfg.Validate()
			if len(problems) != len(test.want) {
				t.Fatalf("problems = %q, want %d", problems, len(test.want))
			}
			for i, want := range test.want {
				if !strings.Contains(problems[i].Error(), want) {
					t.Errorf("problem %d = %q, want it to contain %q", i, problems[i], want)
				}
			}
		})
	}
}

func config(endpoints ...string) etcdconn.Config { return etcdconn.Config{Endpoints: endpoints} }

func TestConnect_MissingCertificateIsAnError(t *testing.T) {
	_, err := etcdconn.Connect(etcdconn.Config{
		Endpoints: []string{"https://127.0.0.1:1"}, CAFile: "/nonexistent/ca.pem",
	}, slog.New(slog.DiscardHandler))
	if err == nil || !strings.Contains(err.Error(), "/nonexistent/ca.pem") {
		t.Errorf("Connect = %v, want an error that names the file", err)
	}
}

func TestConnect_DoesNotWaitForEtcd(t *testing.T) {
	// The address is one that accepts and never answers.
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	client, err := etcdconn.Connect(config("http://"+silent.Addr().String()), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := client.Get(ctx, "key"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Get = %v, want the deadline of its context", err)
	}
}

func TestConnect_ReconnectsByTLSAfterRestart(t *testing.T) {
	cluster := testkit.Cluster(t)
	var cfg etcdconn.Config
	cfg.Endpoints = cluster.EtcdEndpoints()
	cfg.CAFile, cfg.CertFile, cfg.KeyFile = cluster.EtcdFiles()
	client, err := etcdconn.Connect(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := client.Put(ctx, "key", "value"); err != nil {
		t.Fatal(err)
	}
	if err := cluster.StopEtcd(); err != nil {
		t.Fatal(err)
	}
	if err := cluster.StartEtcd(); err != nil {
		t.Fatal(err)
	}
	got, err := client.Get(ctx, "key")
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Kvs) != 1 || string(got.Kvs[0].Value) != "value" {
		t.Errorf("after the restart the key is %v", got.Kvs)
	}
}

func TestConnect_ClientLogsGoToSlogWithTheirFields(t *testing.T) {
	var written bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&written, &slog.HandlerOptions{
		Level: slog.LevelDebug,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	}))
	client, err := etcdconn.Connect(config("http://127.0.0.1:1"), logger)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	written.Reset()
	client.GetLogger().With(zap.String("b", "2")).Error("broken", zap.Int("z", 1), zap.Error(errors.New("why")))
	client.GetLogger().Warn("retrying")
	want := "level=WARN msg=broken component=etcd-client b=2 error=why z=1\nlevel=DEBUG msg=retrying component=etcd-client\n"
	if diff := cmp.Diff(want, written.String()); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
}

func TestExplain_ADeniedRightHasItsRemedy(t *testing.T) {
	denied := etcdconn.Explain(fmt.Errorf("join: %w", rpctypes.ErrPermissionDenied))
	if !errors.Is(denied, rpctypes.ErrPermissionDenied) || !strings.Contains(denied.Error(), "deploy/etcd-roles.sh") {
		t.Errorf("%v has no remedy", denied)
	}
	if other := etcdconn.Explain(rpctypes.ErrNoLeader); other.Error() != rpctypes.ErrNoLeader.Error() {
		t.Errorf("another error becomes %v", other)
	}
}
