package exit

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc/status"

	"github.com/trivet-dev/trivet/internal/rpcerror"
)

// Report writes an error for a person: a line "error[REASON]: …" and, where known, the lines
// "cause: …" and "try: …". It writes nothing for nil and for an error without text.
func Report(w io.Writer, err error) {
	if err == nil || err.Error() == "" {
		return
	}
	summary, cause := err.Error(), ""
	if e, ok := errors.AsType[*Error](err); ok && e.Summary != "" && e.Err != nil {
		summary, cause = e.Summary, messageOf(e.Err)
	}
	reason := reasonOf(err)
	prefix := "error"
	if reason != "" {
		prefix += "[" + reason + "]"
	}
	for line := range strings.SplitSeq(strings.TrimSpace(summary), "\n") { // several problems of a command line
		fmt.Fprintln(w, prefix+": "+line)
		prefix = "error"
	}
	if cause != "" {
		fmt.Fprintln(w, "cause:", cause)
	}
	if hint := hints()[reason]; hint != "" {
		fmt.Fprintln(w, "try:", hint)
	}
}

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

// messageOf returns the message of an RPC error without the text that gRPC adds.
func messageOf(err error) string {
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

// hints returns the most frequent remedy for each reason.
func hints() map[string]string {
	const (
		retry     = "run the command again in a moment"
		replan    = "run `trivet repair plan` again and read the new plan; nothing was written"
		leaders   = retry + "; `trivet status` shows the leaders and the loops"
		otherPort = "check --server: the gateway's default port is 7600. A gateway older than this trivet fails in the same way"
	)
	return map[string]string{
		"NO_SOURCE":             "look at the logs of the replicas; without any, start one, or check its connection to etcd",
		"UNAVAILABLE":           "check that the gateway runs and that --server is its gRPC address; beyond loopback, give --ca-file, --cert-file and --key-file",
		"DEADLINE_EXCEEDED":     "raise --timeout, or check the network for dropped packets",
		"UNIMPLEMENTED":         otherPort,
		"UNKNOWN_METHOD":        otherPort,
		"LOOP_DISABLED":         "run every replica of leasesvc with --loops=*,node-health, and kube-controller-manager without its node-lifecycle-controller (docs/operations.md)",
		"NODE_NOT_FOUND":        "list the Nodes with `trivet nodes`",
		"SERVICE_NOT_FOUND":     "list the Services with `trivet slices`",
		"POD_NOT_FOUND":         "list the Pods with `kubectl get pods`; the Pod must be in the namespace of the Service",
		"SERVICE_UNMANAGED":     "only a Service with a selector has slices; `trivet slices` shows the reason",
		"CONFLICT":              "run the command again: another writer wrote a slice of the Service at the same moment",
		"LEASE_NOT_FOUND":       "list the sessions with `trivet leases`; a kubelet that writes its own Lease has no session",
		"CACHE_NOT_SYNCED":      leaders,
		"NOT_LEADER":            leaders,
		"FINDING_NOT_FOUND":     "list the findings with `trivet findings --ended`",
		"REPAIR_DRIFTED":        replan,
		"REPAIR_TOKEN_EXPIRED":  replan,
		"INVALID_REPAIR_TOKEN":  "copy the whole token, or take it from `trivet repair plan -o token`",
		"REPAIR_RUNNING":        retry + " with the same token: one repair runs at a time",
		"APISERVER_UNREACHABLE": retry + "; /readyz?verbose of the replica shows which connection fails",
		"ETCD_UNREACHABLE":      retry + "; /readyz?verbose of the replica shows which connection fails",
		"INVALID_PAGE_TOKEN":    "run the command again: the gateway restarted while the list was read",
		"SHUTTING_DOWN":         "run the command again, or use another gateway: this one is restarting",
	}
}
