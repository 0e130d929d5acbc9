-- Asks a node whether a request may pass: `http-request lua.acequia URL`.
--
-- argument  the URL of /v1/authz; for each `header.KEY=NAME` in the URL the node gets the header NAME
-- result    the variable txn.acequia is "allowed"; or the client gets the node's answer, and the request ends
-- errors    the variable is not set: HAProxy goes on after an error of a script, so the config must deny then
-- needs     HAProxy 2.6 or newer

-- What HAProxy writes itself, and bodies, which stay here.
local LEFT_OUT = { ["content-length"] = true, ["content-type"] = true, ["date"] = true }

-- HAProxy's lists begin at 0 where it hands headers out, and at 1 where it takes them.
local function named_in(url, sent)
  local headers = {}
  for name in url:gmatch("header%.[^=&]*=([^&]*)") do
    local values = sent[name:lower()]
    if values then
      headers[name] = table.move(values, 0, #values, 1, {})
    end
  end
  return headers
end

local function acequia(txn, url)
  local headers = named_in(url, txn.http:req_get_headers())
  local answer = core.httpclient():get({ url = url, headers = headers })
  if answer.status == 200 then
    txn:set_var("txn.acequia", "allowed")
    return
  end
  local reply = txn:reply({ status = answer.status })
  for name, values in pairs(answer.headers) do
    if not LEFT_OUT[name] then
      for number = 0, #values do
        reply:add_header(name, values[number])
      end
    end
  end
  txn:done(reply)
end

core.register_action("acequia", { "http-req" }, acequia, 1)
