// Package mcp is what kern-sbx and its MCP server, kern-sbx-mcp, have to say to
// each other, and how clients are told to start it.
package mcp
