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

// Report writes for a person why a command ended: a line "error[REASON]: …" and, where they are known, the lines "cause: …"
// and "try: …". It writes nothing for nil and for errors without words.
func Report(w io.Writer, err error) {
	if err == nil || err.Error() == "" {
		return
	}
	summary, cause := err.Error(), ""
	if e, ok := errors.AsType[*Error](err); ok && e.Summary != "" && e.Err != nil {
		summary, cause = e.Summary, message(e.Err)
	}
	reason := reasonOf(err)
	for i, line := range strings.Split(strings.TrimSpace(summary), "\n") {
		if i == 0 {
			line = "error" + bracketed(reason) + ": " + line
		} else {
			line = "error: " + line // one of several problems with the command line
		}
		fmt.Fprintln(w, line)
	}
	if cause != "" {
		fmt.Fprintln(w, "cause:", cause)
	}
	if try := remedy(reason); try != "" {
		fmt.Fprintln(w, "try:", try)
	}
}

// reasonOf names what an RPC failed with: the server's reason or, when no server of ours answered, the canonical code.
func reasonOf(err error) string {
	if reason := rpcerror.ReasonOf(err); reason != "" {
		return string(reason)
	}
	if st, ok := fromRPC(err); ok {
		return code.Code(st.Code()).String()
	}
	return ""
}

// message takes an RPC's own words, without the decoration gRPC adds to them.
func message(err error) string {
	if st, ok := fromRPC(err); ok {
		return st.Message()
	}
	return err.Error()
}

func fromRPC(err error) (*status.Status, bool) {
	var rpc interface{ GRPCStatus() *status.Status }
	if !errors.As(err, &rpc) {
		return nil, false
	}
	return rpc.GRPCStatus(), true
}

func bracketed(reason string) string {
	if reason == "" {
		return ""
	}
	return "[" + reason + "]"
}

// remedy says what helps most often.
func remedy(reason string) string {
	switch reason {
	case "NO_SOURCE":
		return "look at the logs of the replicas named above; none registered means that none runs or none reaches etcd"
	case "UNAVAILABLE":
		return "is the gateway running, and is --server its gRPC address? Beyond loopback it wants --ca-file, --cert-file and --key-file"
	case "DEADLINE_EXCEEDED":
		return "give it longer with --timeout, or see whether something drops packets on the way"
	case "UNIMPLEMENTED", "UNKNOWN_METHOD":
		return "--server may be another service than the gateway, whose default port is 7600, or a gateway older than this trivet"
	case "LOOP_DISABLED":
		return "run every replica of leasesvc with --loops=*,node-health, and kube-controller-manager without its node-lifecycle-controller (docs/operations.md)"
	case "NODE_NOT_FOUND":
		return "`trivet nodes` lists the Nodes that there are"
	case "SERVICE_NOT_FOUND":
		return "`trivet slices` lists the Services that there are"
	case "POD_NOT_FOUND":
		return "kubectl get pods lists the pods that there are; the pod must be in the Service's namespace"
	case "SERVICE_UNMANAGED":
		return "only a Service with a selector gets slices; `trivet slices` says why this one gets none"
	case "CONFLICT":
		return "again: somebody else wrote a slice of the Service at the same moment"
	case "LEASE_NOT_FOUND":
		return "`trivet leases` lists the sessions that there are; a kubelet that writes its own Lease has none"
	case "CACHE_NOT_SYNCED", "NOT_LEADER":
		return "again in a moment; `trivet status` shows which replica holds what and what keeps it"
	case "FINDING_NOT_FOUND":
		return "`trivet findings` lists those that are open, --ended also those that were"
	case "REPAIR_DRIFTED", "REPAIR_TOKEN_EXPIRED":
		return "`trivet repair plan` again, and read what it says now; nothing was written"
	case "INVALID_REPAIR_TOKEN":
		return "copy the token whole, or take it from `trivet repair plan -o token`"
	case "REPAIR_RUNNING":
		return "again in a moment, with the same token: one repair is applied at a time"
	case "APISERVER_UNREACHABLE", "ETCD_UNREACHABLE":
		return "again in a moment; /readyz?verbose of the replica says what it cannot reach"
	case "INVALID_PAGE_TOKEN":
		return "again: the gateway was replaced while the list was read"
	case "SHUTTING_DOWN":
		return "again: the gateway is restarting, or ask another one"
	default:
		return ""
	}
}
