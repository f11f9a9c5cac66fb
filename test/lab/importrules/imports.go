package importrules

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
)

const module = "github.com/trivet-dev/trivet/"

// ban forbids an import. Patterns are regular expressions over the importing file's path and the
// imported path.
type ban struct {
	from    string
	to      string
	except  []string // patterns over "file imports path": edges that are allowed
	tests   bool     // whether the ban holds for test files too
	because string
}

// domains are the packages that decide. Everything they need is a parameter, so a plan depends on
// its inputs alone.
var domains = `^(` + strings.Join([]string{
	`services/leasesvc/internal/(` + leaseDomains + `)`,
	`services/bootstrapsvc/internal/(` + bootstrapDomains + `)`,
	`services/slicesvc/internal/(` + sliceDomains + `)`,
	`gateway/internal/(` + gatewayDomains + `)`,
	`cmd/trivet-agent/internal/leasewrite`,
	`cmd/trivet/internal/diagnosis`,
	`internal/shadow/difference`,
}, `|`) + `)/`

const (
	leaseDomains     = `shadow|class|session|writeback|checkpoint|nodehealth|eviction|explain`
	bootstrapDomains = `shadow|baseline|apiservers|allocation`
	sliceDomains     = `shadow|index|desired|pack|hints|mirror|explain`
	gatewayDomains   = `(history|merge|verdict)`
)

// commandLine are the shared packages of the command line, which import each other and no other
// package of the repository. So no package of a server is linked into trivet, not even through
// another package.
const commandLine = `internal/(cli/\w+|atomicfile|backoff|certs|etcdconn|etcdroles|identity|observe/loglevel|prototime|roles|rpcclient|rpcerror|wording)`

var bans = []ban{
	{
		from: domains, to: `^(context|log/slog|net/http|os|log|math/rand)$|^google\.golang\.org/grpc|^go\.etcd\.io/|^k8s\.io/client-go|^github\.com/prometheus/`,
		because: "a domain package decides from its parameters: no I/O, no clock, no logs, no metrics",
	},
	{
		from: domains, to: `^` + module + `(internal|proto|agent|gateway)(/|$)`,
		except: []string{
			// The merge is a function of the API's own messages; domain copies of them would repeat
			// them.
			`^gateway/internal/(history|merge|verdict)/.* imports ` + module + `(proto/.*|internal/term|gateway/internal/verdict)$`,
			// A pure function on whose result replicas must agree.
			` imports ` + module + `internal/shard$`,
			// Values and texts without I/O.
			` imports ` + module + `internal/(shadow/difference|backoff|evidence|planned|wording)$`,
		},
		because: "a domain package imports neither the API nor the shared packages",
	},
	{
		from: `^services/(leasesvc)/`, to: `^` + module + `services/(bootstrapsvc|slicesvc)`, tests: true,
		because: "each service must run without the others",
	},
	{
		from: `^services/(bootstrapsvc)/`, to: `^` + module + `services/(leasesvc|slicesvc)`, tests: true,
		because: "each service must run without the others",
	},
	{
		from: `^services/(slicesvc)/`, to: `^` + module + `services/(leasesvc|bootstrapsvc)`, tests: true,
		because: "each service must run without the others",
	},
	{
		from: `^services/`, to: `^` + module + `(gateway|cmd)(/|$)`, tests: true,
		because: "the gateway is a client of the services",
	},
	{
		from: `^gateway/`, to: `^` + module + `(services|cmd|agent)(/|$)`, tests: true,
		because: "the gateway uses services only through their API, as any client does",
	},
	{
		from: `^(agent|cmd|internal|services)/`, to: `^github\.com/grpc-ecosystem/grpc-gateway/|^` + module + `gateway/internal/httpapi/`,
		because: "HTTP belongs to the gateway, so that no other program links its routes",
	},
	{
		from: `^internal/`, to: `^` + module + `(services|gateway|cmd|agent)(/|$)`,
		because: "a shared package does not depend on its users",
	},
	{
		from: `^internal/`, to: `^` + module + `proto/`,
		except: []string{
			// The one API that every process serves, and what all APIs share.
			`^internal/(answer|evidence|planned|status|process)/.* imports ` + module + `proto/trivet/(meta|status)/v1$`,
			`^internal/shadowapi/.* imports ` + module + `proto/trivet/(meta|shadow)/v1$`,
			`^internal/(watchcache|rpcserver)/.* imports ` + module + `proto/trivet/(meta|auth)/v1$`,
			// The client of the gateway, which its commands share.
			`^internal/cli/`,
		},
		because: "a shared package serves any API and depends on none",
	},
	{
		from: `^services/`, to: `^` + module + `proto/`,
		except: []string{
			`^services/\w+/internal/(api|nodeapi)/`,
			`^services/\w+/(\w+|internal/\w+controller/\w+)\.go imports ` + module + `proto/trivet/meta/v1$`, // problems of the service
		},
		because: "only internal/api handles API messages: RPC handlers, conversion and the table of errors",
	},
	{
		from: `^agent/`, to: `^` + module + `(services|gateway|cmd)(/|$)`,
		because: "the client must not pull a server into its users' programs",
	},
	{
		from: `^(cmd/trivet|` + commandLine + `)/`, to: `^` + module,
		except: []string{
			` imports ` + module + `(` + commandLine + `|proto/.*|deploy)$`,
			`^cmd/trivet/.* imports ` + module + `cmd/trivet/internal/\w+$`,
		},
		because: "trivet is a client: it links no server, and neither do the packages that it shares with servers",
	},
	{
		from: `^(agent|cmd|deploy|gateway|internal|services)/`, to: `^` + module + `(test/|.*test$)`,
		except:  []string{`^\S*test/\w+\.go imports `},
		because: "the product needs no test, no laboratory and no test kit",
	},
	{
		from: `^(services|gateway|internal|agent|cmd|test)/`, to: `^k8s\.io/(kubernetes|endpointslice)|^go\.etcd\.io/etcd/server`, tests: true,
		except:  []string{`^services/slicesvc/conformance/`}, // a module of its own that compares internal packages with upstream
		because: "upstream's controllers and etcd's server stay in modules of their own, so that the root stays lean",
	},
}

func (b ban) broken(s source, imported string) bool {
	if s.test && !b.tests {
		return false
	}
	if !regexp.MustCompile(b.from).MatchString(s.path) || !regexp.MustCompile(b.to).MatchString(imported) {
		return false
	}
	edge := s.path + " imports " + imported
	return !slices.ContainsFunc(b.except, func(pattern string) bool { return regexp.MustCompile(pattern).MatchString(edge) })
}

func checkImports(s source) []string {
	var breaches []string
	for _, spec := range s.file.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			continue // the compiler reports it
		}
		for _, b := range bans {
			if b.broken(s, imported) {
				breaches = append(breaches, s.at(spec)+": imports "+imported+": "+b.because)
			}
		}
	}
	return breaches
}
