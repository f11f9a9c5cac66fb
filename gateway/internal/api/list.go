package api

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/trivet-dev/trivet/gateway/internal/fanout"
	"github.com/trivet-dev/trivet/gateway/internal/merge"
	"github.com/trivet-dev/trivet/internal/term"
	metav1 "github.com/trivet-dev/trivet/proto/trivet/meta/v1"
)

// maxRounds bounds how often the replicas are asked for one page. A second round is needed only if
// a page starts in the middle of what was read before, or if a replica returns only a token.
const maxRounds = 4

// pages are the sizes of the pages of a list.
type pages struct{ normal, limit int }

func (p pages) size(requested int32) int {
	if requested == 0 {
		return p.normal
	}
	return min(int(requested), p.limit)
}

// round is what the replicas answered for one page.
type round struct {
	pages    []merge.Page
	sources  []*metav1.Source
	failures []fanout.Failure
}

// listAll asks all replicas for their next page and merges the pages.
func (c *collection) listAll(sizes pages) unary {
	return func(ctx context.Context, m method, request proto.Message) (proto.Message, error) {
		arguments, token := argumentsOf(request), text(request, "page_token")
		requested, _ := get(request, "page_size").(int32)
		size := sizes.size(requested)
		at, err := merge.ParsePosition(token, m.name()+"\x00"+arguments)
		if err != nil {
			return nil, pageTokenError(err)
		}
		resume := ""
		if token == "" {
			resume, _ = c.hub.ResumeToken(c.watch.name(), arguments)
		}
		var answers round
		var items []merge.Item
		more := true
		for range maxRounds {
			if answers, err = c.askRound(ctx, m, request, size, at.Token); err != nil {
				return nil, err
			}
			if items, at, more = merge.Cut(answers.pages, at, size); len(items) > 0 || !more {
				break
			}
		}
		response := m.response.New().Interface()
		appendTo(response, itemField(m.response.Descriptor()), items)
		if more { // possibly an empty page in the middle
			set(response, "next_page_token", at.Encode(m.name()+"\x00"+arguments))
		}
		missing := c.missing(ctx, answers)
		appendTo(response, "sources", answers.sources)
		appendTo(response, "missing", missing)
		if len(missing) == 0 {
			set(response, "resume_token", resume)
		}
		return response, nil
	}
}

// missing returns what the answers of a round lack.
func (c *collection) missing(ctx context.Context, answers round) []*metav1.MissingPart {
	if c.ownership == merge.Local {
		missing := merge.Missing(c.name, nil, answers.sources, fanout.Parts(answers.failures))
		return append(missing, c.absentServices()...)
	}
	leaders := c.leadersNow(ctx)
	missing := merge.Missing(c.name, leaders, answers.sources, fanout.Parts(answers.failures))
	if len(leaders) == 0 {
		missing = append(missing, merge.UnknownShards(c.name))
	}
	return missing
}

// askRound asks each replica once. The error is INVALID_ARGUMENT or a refusal of the caller, which
// each replica would return, or that no replica answered.
func (c *collection) askRound(ctx context.Context, m method, request proto.Message, limit int, token string) (round, error) {
	members := c.members()
	if c.ownership.DividesItems() {
		limit = max(1, limit/max(1, len(members))) // together they fill a page
	}
	request = proto.Clone(request)
	set(request, "page_size", int32(limit))
	type reply struct {
		page    merge.Page
		source  *metav1.Source
		failure fanout.Failure
	}
	replies := make([]reply, len(members))
	var calls sync.WaitGroup
	for i, member := range members {
		calls.Go(func() {
			started := time.Now()
			page, source, err := c.askForPage(ctx, m, member, request, limit, token)
			replies[i] = reply{page: page, source: source, failure: fanout.Failure{Member: member, Err: err, After: time.Since(started)}}
		})
	}
	calls.Wait()
	if ctx.Err() != nil {
		return round{}, context.Cause(ctx) // the replicas did not fail: the caller left
	}
	var answers round
	for _, reply := range replies {
		switch {
		case reply.failure.Err == nil:
			answers.pages = append(answers.pages, reply.page)
			answers.sources = append(answers.sources, reply.source)
		case status.Code(reply.failure.Err) == codes.InvalidArgument || isRefusal(reply.failure.Err):
			return round{}, reply.failure.Err
		default:
			answers.failures = append(answers.failures, reply.failure)
		}
	}
	if len(answers.pages) == 0 {
		return round{}, c.allFailed(answers.failures)
	}
	return answers, nil
}

// askForPage asks one replica, and asks again while it returns a token without items.
func (c *collection) askForPage(ctx context.Context, m method, member term.Member, request proto.Message, limit int, token string) (merge.Page, *metav1.Source, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	var source *metav1.Source
	page, err := fanout.CallMember(ctx, c.connections, member, func(ctx context.Context, conn grpc.ClientConnInterface, member term.Member) (merge.Page, error) {
		request := proto.Clone(request)
		for {
			set(request, "page_token", token)
			answer, err := call(m, request)(ctx, conn, member)
			if err != nil {
				return merge.Page{}, err
			}
			page := merge.Page{Items: itemsOf(answer), Token: text(answer, "next_page_token")}
			if err := page.Check(limit); err != nil {
				return merge.Page{}, status.Error(codes.Internal, err.Error())
			}
			source = &metav1.Source{Service: member.Service, ReplicaId: member.ID}
			if sources := sourcesOf(answer); len(sources) > 0 {
				source = sources[0]
			}
			if len(page.Items) > 0 || page.Token == "" {
				return page, nil
			}
			token = page.Token
		}
	})
	return page, source, err
}
