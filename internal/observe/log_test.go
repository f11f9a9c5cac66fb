package observe_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	"google.golang.org/grpc/grpclog"
	"k8s.io/klog/v2"

	"github.com/trivet-dev/trivet/internal/observe"
)

func TestLogConfig_Defaults(t *testing.T) {
	t.Parallel()
	var cfg observe.LogConfig
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	cfg.RegisterFlags(fs)
	if err := fs.Parse(nil); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(observe.LogConfig{Level: "info", Format: "text"}, cfg); diff != "" {
		t.Errorf("defaults (-want +got):\n%s", diff)
	}
}

func TestLogConfig_Validate(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		cfg  observe.LogConfig
		want []string
	}{
		"zero":           {observe.LogConfig{}, nil},
		"all there is":   {observe.LogConfig{Level: "debug", Format: "json"}, nil},
		"upper case":     {observe.LogConfig{Level: "INFO"}, []string{`--log-level "INFO" is none of debug, info, warn, error`}},
		"both are wrong": {observe.LogConfig{Level: "loud", Format: "xml"}, []string{`--log-level "loud" is none of debug, info, warn, error`, `--log-format "xml" is neither text nor json`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got []string
			for _, err := range test.cfg.Validate() {
				got = append(got, err.Error())
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

func TestNewLogger_LogsFromItsLevel(t *testing.T) {
	t.Parallel()
	for level, want := range map[string]string{
		"debug": "debug info warn error",
		"info":  "info warn error",
		"":      "info warn error",
		"warn":  "warn error",
		"error": "error",
	} {
		var out bytes.Buffer
		logger := observe.NewLogger(&out, observe.LogConfig{Level: level, Format: "json"})
		logger.Debug("debug")
		logger.Info("info")
		logger.Warn("warn")
		logger.Error("error")
		var messages []string
		for _, line := range lines(t, &out) {
			messages = append(messages, line["msg"].(string))
		}
		if got := strings.Join(messages, " "); got != want {
			t.Errorf("level %q logs %q, want %q", level, got, want)
		}
	}
}

func TestNewLogger_TextIsTheDefault(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	observe.NewLogger(&out, observe.LogConfig{}).Info("hello", slog.Int("n", 1))
	if got := out.String(); !strings.Contains(got, "level=INFO msg=hello n=1") {
		t.Errorf("logged %q", got)
	}
}

// No other test of this package may use klog or grpclog, because their loggers are global.
func TestBridge_RedirectsKlogAndGRPC(t *testing.T) {
	var out bytes.Buffer
	observe.Bridge(observe.NewLogger(&out, observe.LogConfig{Level: "debug", Format: "json"}))
	t.Cleanup(klog.ClearLogger)

	klog.InfoS("synced", "nodes", 3)
	klog.ErrorS(errors.New("gone"), "watch ended")
	grpclog.Infof("channel %d created", 7)
	grpclog.Infoln("channel", 8)
	grpclog.Info("channel")
	grpclog.Warningf("retry %d", 1)
	grpclog.Warningln("retry", 2)
	grpclog.Warning("retry")
	grpclog.Errorf("listener %d", 1)
	grpclog.Errorln("listener", 2)
	grpclog.Error("listener")

	got := lines(t, &out)
	for _, line := range got {
		delete(line, "time")
	}
	want := []map[string]any{
		{"level": "INFO", "source": "client-go", "msg": "synced", "nodes": 3.0},
		{"level": "ERROR", "source": "client-go", "msg": "watch ended", "err": "gone"},
		{"level": "DEBUG", "source": "grpc", "msg": "channel 7 created"},
		{"level": "DEBUG", "source": "grpc", "msg": "channel 8"},
		{"level": "DEBUG", "source": "grpc", "msg": "channel"},
		{"level": "WARN", "source": "grpc", "msg": "retry 1"},
		{"level": "WARN", "source": "grpc", "msg": "retry 2"},
		{"level": "WARN", "source": "grpc", "msg": "retry"},
		{"level": "ERROR", "source": "grpc", "msg": "listener 1"},
		{"level": "ERROR", "source": "grpc", "msg": "listener 2"},
		{"level": "ERROR", "source": "grpc", "msg": "listener"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
	if !grpclog.V(2) {
		t.Error("at debug, grpc keeps its verbose lines to itself")
	}

	out.Reset()
	observe.Bridge(observe.NewLogger(&out, observe.LogConfig{Level: "info"}))
	grpclog.Infof("channel %d created", 7)
	klog.V(2).InfoS("detail")
	if got := out.String(); got != "" {
		t.Errorf("at info, the detail is logged: %q", got)
	}
	if grpclog.V(2) || !grpclog.V(0) {
		t.Errorf("at info, V(2) is %t and V(0) is %t", grpclog.V(2), grpclog.V(0))
	}
}

// lines parses a log written as JSON.
func lines(t *testing.T, out *bytes.Buffer) []map[string]any {
	t.Helper()
	var parsed []map[string]any
	for line := range bytes.Lines(out.Bytes()) {
		var fields map[string]any
		if err := json.Unmarshal(line, &fields); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		parsed = append(parsed, fields)
	}
	return parsed
}

// An agent that cannot connect logs a warning for each attempt, and so does each of its neighbours.
func TestBridge_SimilarWarningsOfGRPCAreLoggedOncePerPeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		observe.Bridge(observe.NewLogger(&out, observe.LogConfig{Level: "info"}))
		defer observe.Bridge(slog.New(slog.DiscardHandler))
		logger := grpclog.Component("core")
		for i := range 1000 {
			logger.Warningf("[Channel #%d SubChannel #%d] grpc: addrConn.createTransport failed to connect to {Addr: \"127.0.0.1:%d\"}. Err: refused", i, i+1, i)
			time.Sleep(15 * time.Millisecond) // 15 s in all
		}
		logger.Warningf("grpc: Server.Serve failed to complete security handshake from %q: expired", "127.0.0.1:1")
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if len(lines) != 3 || !strings.Contains(lines[1], "similar_left_out=666") || !strings.Contains(lines[2], "security handshake") {
			t.Errorf("1001 warnings of two kinds in 15 s gave %d lines, want 3:\n%s", len(lines), &out)
		}
	})
}

// Another cause is another kind, however the message begins. Otherwise the failure of one server
// could hide that of another one for as long as it lasts.
func TestBridge_SimilarWarningsOfGRPCHideNoOtherCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		observe.Bridge(observe.NewLogger(&out, observe.LogConfig{Level: "info"}))
		defer observe.Bridge(slog.New(slog.DiscardHandler))
		logger := grpclog.Component("core")
		const message = `[Channel #%d SubChannel #%d]grpc: addrConn.createTransport failed to connect to {Addr: "%s", ServerName: "leasesvc", }. ` +
			`Err: connection error: desc = "transport: %s"`
		for i := range 1000 {
			logger.Warningf(message, i, i+1, fmt.Sprintf("10.0.%d.%d:7600", i/250, i%250),
				fmt.Sprintf("Error while dialing: dial tcp 10.0.%d.%d:7600: connect: connection refused", i/250, i%250))
			logger.Warningf(message, i, i+1, fmt.Sprintf("[fd00::%x]:7600", i),
				fmt.Sprintf("Error while dialing: dial tcp [fd00::%x]:7600: connect: connection refused", i))
		}
		logger.Warningf(message, 7, 8, "etcd-0.etcd:2379", "authentication handshake failed: tls: failed to verify certificate: x509: certificate has expired")
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if len(lines) > 4 || !strings.Contains(lines[len(lines)-1], "certificate has expired") {
			t.Errorf("2001 warnings of two causes gave %d lines, want at most 4 and the last of an expired certificate:\n%s", len(lines), &out)
		}
	})
}
