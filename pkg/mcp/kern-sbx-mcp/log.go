//lint:file-ignore SA1019 the protocol gives up log messages; the clients of today show them

package main

import (
	"context"
	"log/slog"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/kern-sbx/kern-sbx/pkg/term"
)

// logs says that there are log messages.
func logs(c *sdk.ServerCapabilities) *sdk.ServerCapabilities {
	c.Logging = &sdk.LoggingCapabilities{}
	return c
}

// tell logs, here and at the client.
func (s *server) tell(ctx context.Context, to *sdk.ServerSession, level slog.Level, text string) {
	s.log.Log(ctx, level, text)
	if to == nil {
		return
	}
	name := sdk.LoggingLevel("info")
	if level >= slog.LevelWarn {
		name = "warning"
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = to.Log(ctx, &sdk.LoggingMessageParams{Level: name, Logger: "kern-sbx", Data: term.Visible(text)})
}
