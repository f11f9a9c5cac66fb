package exit

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/trivet-dev/trivet/internal/cli/printer"
	"github.com/trivet-dev/trivet/internal/rpcerror"
	registryv1 "github.com/trivet-dev/trivet/proto/trivet/registry/v1alpha1"
)

// Report writes an error for a person: a line "error[REASON]: …" and, where known, the lines
// "cause: …" and "try: …". It writes nothing for nil and for an error without text. Servers choose
// parts of the text: it has no control characters, and no line of a cause begins as another one.
func Report(w io.Writer, err error) {
	if err == nil || err.Error() == "" {
		return
	}
	summary, cause := Message(err), ""
	if e, ok := errors.AsType[*Error](err); ok && e.Summary != "" && e.Err != nil {
		summary, cause = e.Summary, Message(e.Err)
	}
	reason := reasonOf(err)
	prefix := "error"
	if reason != "" {
		prefix += "[" + reason + "]"
	}
	for line := range strings.SplitSeq(strings.TrimSpace(summary), "\n") { // several problems of a command line
		fmt.Fprintln(w, plain(prefix+": "+line))
		prefix = "error"
	}
	if cause != "" {
		start := "cause: "
		for line := range strings.SplitSeq(cause, "\n") {
			fmt.Fprintln(w, start+plain(line))
			start = "  "
		}
	}
	hint := hintFor(reason)
	if e, ok := errors.AsType[*Error](err); ok {
		hint = cmp.Or(e.Try, hint)
	}
	if hint != "" {
		fmt.Fprintln(w, "try:", plain(hint))
	}
}

// plain returns one line without control characters.
func plain(line string) string { return printer.Sanitize(strings.ReplaceAll(line, "\t", " ")) }

// reasonOf returns the reason in the ErrorInfo of an RPC error; without one, its canonical code.
func reasonOf(err error) string {
	if reason := rpcerror.ReasonOf(err); reason != "" {
		return string(reason)
	}
	if st, ok := statusOf(err); ok {
		return code.Code(st.Code()).String()
	}
	return ""
}

// Message returns the message of an RPC error without the text that gRPC adds. Errors that
// errors.Join has joined have one line each.
func Message(err error) string {
	if joined, is := err.(interface{ Unwrap() []error }); is {
		var texts, messages []string
		for _, one := range joined.Unwrap() {
			texts, messages = append(texts, one.Error()), append(messages, Message(one))
		}
		if strings.Join(texts, "\n") == err.Error() { // and not several %w of a format
			return strings.Join(messages, "\n")
		}
	}
	if st, ok := statusOf(err); ok {
		return st.Message()
	}
	return err.Error()
}

func statusOf(err error) (*status.Status, bool) {
	var rpc interface{ GRPCStatus() *status.Status }
	if !errors.As(err, &rpc) {
		return nil, false
	}
	return rpc.GRPCStatus(), true
}

// hintFor returns the most frequent remedy for a reason: that of this command, else the action in
// the API's registry of reasons.
func hintFor(reason string) string {
	if hint := hints()[reason]; hint != "" {
		return hint
	}
	value := registryv1.ErrorReason_ERROR_REASON_UNSPECIFIED.Descriptor().Values().ByName(protoreflect.Name("ERROR_REASON_" + reason))
	if value == nil {
		return ""
	}
	info, _ := proto.GetExtension(value.Options(), registryv1.E_Reason).(*registryv1.ReasonInfo)
	action := info.GetAction()
	if strings.HasPrefix(action, "None") {
		return ""
	}
	first, size := utf8.DecodeRuneInString(action)
	return string(unicode.ToLower(first)) + strings.TrimSuffix(action[size:], ".")
}

// hints returns the remedies that depend on the command line.
func hints() map[string]string {
	const (
		retry     = "run the command again in a moment"
		replan    = "run `trivet repair` again and read the new plan; nothing was written"
		leaders   = retry + "; `trivet status` shows the loops, `trivet shards` the leaders"
		otherPort = "check --server: the gateway's default port is 7600. A gateway older than this trivet fails in the same way"
		checks    = retry + "; /readyz?verbose of the replica shows which connection fails"
	)
	return map[string]string{
		"REPLICAS_UNREACHABLE":   "look at the logs of the replicas; without any, start one, or check its connection to etcd",
		"UNAVAILABLE":            "check that the gateway runs and that --server is its gRPC address; beyond loopback, give --ca-file, --cert-file and --key-file",
		"DEADLINE_EXCEEDED":      "raise --timeout, or check the network for dropped packets",
		"UNIMPLEMENTED":          otherPort,
		"UNKNOWN_METHOD":         otherPort,
		"UNKNOWN_FIELD":          "update the gateway and the services: they are older than this trivet",
		"LOOP_DISABLED":          "run every replica of leasesvc with --dry-run=node-health, which judges and writes nothing beside kube-controller-manager; `trivet migrate nodes` hands the duty over",
		"NOT_AUTHORIZED":         "run the command that the cause names; ClusterRole trivet-viewer has the rights to read, trivet-operator those to change",
		"NODE_NOT_FOUND":         "list the Nodes with `trivet nodes`",
		"ZONE_NOT_FOUND":         "list the zones with `trivet zones`",
		"APISERVER_NOT_FOUND":    "list the kube-apiservers with `trivet apiservers`",
		"SERVICE_NOT_FOUND":      "list the Services with `trivet slices`",
		"POD_NOT_FOUND":          "list the Pods with `kubectl get pods`; the Pod must be in the namespace of the Service",
		"SERVICE_UNMANAGED":      "only a Service with a selector has slices; `trivet slices` shows the reason",
		"CONFLICT":               "run the command again: another writer wrote a slice of the Service at the same moment",
		"ETAG_MISMATCH":          "read it again: it has changed since it was read; nothing was written",
		"LEASE_NOT_FOUND":        "list the leases with `trivet leases`; a kubelet that writes its own Lease object has no lease",
		"CACHE_NOT_SYNCED":       leaders,
		"NOT_LEADER":             leaders,
		"NO_LEADER":              leaders,
		"FINDING_NOT_FOUND":      "list the findings with `trivet findings --ended`",
		"PLAN_NOT_FOUND":         "list the plans with `trivet repair plans`",
		"PLAN_DRIFTED":           replan,
		"PLAN_EXPIRED":           replan,
		"REPAIR_NOT_FOUND":       "list the repairs with `trivet repair list`",
		"REPAIR_RUNNING":         retry + ": one repair runs at a time; `trivet repair list` shows it",
		"REPAIR_NOT_CANCELLABLE": "read its result with `trivet repair show`: it has ended",
		"APISERVER_UNREACHABLE":  checks,
		"ETCD_UNREACHABLE":       checks,
		"INVALID_PAGE_TOKEN":     "run the command again: the gateway restarted while the list was read",
		"SHUTTING_DOWN":          "run the command again, or use another gateway: this one is restarting",
	}
}
