package archtest

import (
	"regexp"
	"slices"
	"strconv"
)

const module = "github.com/trivet-dev/trivet/"

// ban forbids an import. Patterns are regular expressions over the importing file's path and the imported path.
type ban struct {
	from    string
	to      string
	except  []string // imported paths, or file paths, that are allowed all the same; patterns too
	tests   bool     // whether the ban holds for test files too
	because string
}

// cores are the rooms that decide. They get everything as a parameter, so that a plan depends on its inputs alone.
const cores = `^(services/\w+/internal/(session|column|admission|writeback|checkpoint|nodehealth|evidence|eviction|pace|baseline|apiservers|readiness|advertise|allocation|index|desired|pack|placement|contention|shard|hints|explain|batch)|gateway/internal/(merge|fleet))/`

var bans = []ban{
	{
		from: cores, to: `^(context|log/slog|net/http|os|log|math/rand)$|^google\.golang\.org/grpc|^go\.etcd\.io/|^k8s\.io/client-go|^github\.com/prometheus/`,
		because: "a core decides from its parameters: no I/O, no clock, no logs, no metrics",
	},
	{
		from: cores, to: `^` + module + `(internal|proto|agent|gateway)(/|$)`,
		except: []string{
			// the merge is a function of the API's own messages: domain copies of them would say the same twice
			`^gateway/internal/merge/.* imports ` + module + `(proto/.*|internal/term)$`,
			// a pure function that replicas must agree on
			` imports ` + module + `internal/shard$`,
		},
		because: "a core knows neither the wire nor the plumbing",
	},
	{
		from: `^services/(leasesvc)/`, to: `^` + module + `services/(bootstrapsvc|slicesvc)`, tests: true,
		because: "legs stand alone: each must run without the others",
	},
	{
		from: `^services/(bootstrapsvc)/`, to: `^` + module + `services/(leasesvc|slicesvc)`, tests: true,
		because: "legs stand alone: each must run without the others",
	},
	{
		from: `^services/(slicesvc)/`, to: `^` + module + `services/(leasesvc|bootstrapsvc)`, tests: true,
		because: "legs stand alone: each must run without the others",
	},
	{
		from: `^services/`, to: `^` + module + `(gateway|cmd)(/|$)`, tests: true,
		because: "the gateway stands above the services",
	},
	{
		from: `^gateway/`, to: `^` + module + `(services|cmd|agent)(/|$)`, tests: true,
		because: "the gateway knows services only by their API, as any client does",
	},
	{
		from: `^internal/`, to: `^` + module + `(services|gateway|cmd|agent)(/|$)`,
		because: "plumbing knows nobody who uses it",
	},
	{
		from: `^internal/`, to: `^` + module + `proto/`,
		except: []string{
			`^internal/status/.* imports ` + module + `proto/trivet/status/v1$`, // the one API that every process serves
		},
		because: "plumbing carries any API and depends on none",
	},
	{
		from: `^services/`, to: `^` + module + `proto/`,
		except: []string{
			`^services/\w+/(server|convert|errors|stream|watch)\w*\.go imports `,
		},
		because: "the wire stays at the door: RPC handlers, conversion and the table of errors",
	},
	{
		from: `^agent/`, to: `^` + module + `(services|gateway|cmd)(/|$)`,
		because: "the client must not pull a server into its users' programs",
	},
	{
		from: `.`, to: `^` + module + `internal/(testkit|term/termtest|archtest)$`,
		except:  []string{`^internal/testkit/`, `^internal/term/termtest/`},
		because: "test kits serve tests only",
	},
	{
		from: `^(services|gateway|internal|agent|cmd|test)/`, to: `^k8s\.io/(kubernetes|endpointslice)|^go\.etcd\.io/etcd/server`, tests: true,
		except:  []string{`^services/slicesvc/conformance/`}, // such a module, which lies where it may import what it compares
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
			continue // the compiler says so
		}
		for _, b := range bans {
			if b.broken(s, imported) {
				breaches = append(breaches, s.at(spec)+": imports "+imported+": "+b.because)
			}
		}
	}
	return breaches
}
